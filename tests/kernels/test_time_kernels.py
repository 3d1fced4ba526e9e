"""The kernels' benchmark: each family has cases that run, compared with the binding limit."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from vllm_lite.kernels import dispatch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that measures one case, with data that need not be beyond any cache."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("kernels.case")
    monkeypatch.setattr(module, "BEYOND_CACHES", 1)
    return module


@pytest.mark.parametrize(
    "family", ["linear", "head", "quantized", "grouped", "attention", "rows", "sampling"]
)
def test_the_first_case_of_a_family_is_timed(case: Any, family: str) -> None:
    dispatch.select_ops("cpu")
    small = case.Shape(64, 96, 4, 2, 16, 128)
    found = list(importlib.import_module(f"kernels.{family}").cases(small))
    timing = case.measure(found[0], 0.0)
    assert timing.seconds > 0 and timing.gb_s > 0
    # Products by plain weights have torch's beside them.
    assert (timing.rival_seconds is not None) == (family == "linear")
    assert len({(one.kernel, one.size) for one in found}) == len(found)


def test_the_binding_limit_is_the_floor(case: Any) -> None:
    limits = importlib.import_module("kernels.limits").Limits(10.0, 100.0, 50.0, 400.0)

    def floor(num_bytes: float, operations: float, arithmetic: str) -> float:
        made = case.Case("", "", list, num_bytes, operations, arithmetic)
        share: float = case.Timing(made, 1.0).share(limits)
        return share

    assert floor(1e10, 1e9, "float32") == pytest.approx(1.0)
    assert floor(1e9, 4e11, "int8") == pytest.approx(1.0)
    # No processor does in bfloat16 more slowly what it can do in float32.
    assert floor(0, 1e11, "bfloat16") == pytest.approx(1.0)


def test_scattered_bytes_have_a_limit_of_their_own(case: Any) -> None:
    limits = importlib.import_module("kernels.limits").Limits(10.0, 1.0, 1.0, 1.0, 8.0)

    def share(is_scattered: bool) -> float | None:
        made = case.Case("", "", list, 4e9, 0.0, "float32", is_scattered=is_scattered)
        found: float | None = case.Timing(made, 1.0).share_of_scattered(limits)
        return found

    assert share(True) == pytest.approx(0.5)
    assert share(False) is None


def test_the_best_of_several_measurements_is_the_limit(case: Any) -> None:
    limits = importlib.import_module("kernels.limits")
    low, high = limits.Limits(1.0, 9.0, 0.0, 3.0), limits.Limits(2.0, 8.0, 0.0, 4.0)
    assert limits.best([low, None, high]) == limits.Limits(2.0, 9.0, 0.0, 4.0)
    assert limits.best([None]) is None


def test_medians_of_times_have_medians_of_limits(case: Any) -> None:
    limits = importlib.import_module("kernels.limits")
    found = [limits.Limits(number, 9.0 - number, 0.0, 3.0) for number in (1.0, 5.0, 2.0)]
    assert limits.typical([None, *found]) == limits.Limits(2.0, 7.0, 0.0, 3.0)
    assert limits.typical([]) is None


def test_the_counted_limit_is_that_of_all_instructions_of_a_loop(case: Any) -> None:
    limits = importlib.import_module("kernels.limits").Limits(10.0, 100.0, 50.0, 400.0)

    def share(num_counted: float | None) -> float | None:
        made = case.Case("", "", list, 1e9, 2e11, "int8", num_counted)
        found: float | None = case.Timing(made, 1.0).share_of_counted(limits)
        return found

    assert share(2e11 * 11 / 8) == pytest.approx(0.6875)
    assert share(None) is None
