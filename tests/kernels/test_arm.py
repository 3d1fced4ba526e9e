"""The kernels compile for 64-bit ARM, where a compiler for it is installed.

They run where the package does: its tests on an emulated processor are those of every other one.
"""

from __future__ import annotations

import pytest

from tests.arm_check import COMPILER, UNITS, errors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="there is no compiler for ARM here"),
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_compiles(unit: str) -> None:
    assert not errors(unit)
