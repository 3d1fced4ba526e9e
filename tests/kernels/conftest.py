"""Fixtures that run kernel tests on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels import emulated_tiles
from vllm_lite import _cpu


@pytest.fixture(params=_cpu.supported_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force one instruction set, and restore the default after the test."""
    before = _cpu.selected_isa()
    _cpu.select_isa(request.param)
    yield request.param
    _cpu.select_isa(before)


EMULATED = {f"amx, {kind}": kind for kind in emulated_tiles.kinds()}


@pytest.fixture(params=[*_cpu.supported_isas(), *EMULATED])
def product_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As `isa`, for linear layers by packed weights, with AMX tiles emulated too."""
    before = _cpu.selected_isa()
    if request.param in EMULATED:
        # Other operations use the level below AMX.
        _cpu.select_isa(emulated_tiles.base_isa())
        with emulated_tiles.build(EMULATED[request.param]).chosen():
            yield request.param
    else:
        _cpu.select_isa(request.param)
        yield request.param
    _cpu.select_isa(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads after a test that changes it."""
    before = _cpu.num_threads()
    yield
    _cpu.set_num_threads(before)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
