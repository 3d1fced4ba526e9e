"""Every kernel test runs once for each instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vllm_lite import _cpu


@pytest.fixture(params=_cpu.supported_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Forces one instruction set, and gives the machine's own choice back after the test."""
    before = _cpu.selected_isa()
    _cpu.select_isa(request.param)
    yield request.param
    _cpu.select_isa(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives the number of threads back after a test that changes it."""
    before = _cpu.num_threads()
    yield
    _cpu.set_num_threads(before)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
