"""Every kernel test runs once for each instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels import emulated_tiles
from vllm_lite import _cpu


@pytest.fixture(params=_cpu.supported_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Forces one instruction set, and gives the machine's own choice back after the test."""
    before = _cpu.selected_isa()
    _cpu.select_isa(request.param)
    yield request.param
    _cpu.select_isa(before)


EMULATED = {f"amx, {kind}": kind for kind in emulated_tiles.kinds()}


@pytest.fixture(params=[*_cpu.supported_isas(), *EMULATED])
def product_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As `isa`, for products by packed weights: also those on tiles, emulated."""
    before = _cpu.selected_isa()
    if request.param in EMULATED:
        # What is not a product is done by what tiles come on top of.
        _cpu.select_isa(emulated_tiles.base_isa())
        with emulated_tiles.build(EMULATED[request.param]).chosen():
            yield request.param
    else:
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
