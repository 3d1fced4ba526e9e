"""The check of AMX kernels: times side by side, and a line where the processor has no tiles."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_lite import _cpu

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("amx_check")


def run(**microseconds: float) -> dict[str, Any]:
    """The record of one run of time_kernels.py, by size."""
    return {
        "timings": [
            {"kernel": "product", "size": size, "microseconds": taken, "share_of_limit": 1 / taken}
            for size, taken in microseconds.items()
        ]
    }


def test_times_stand_side_by_side(check: Any) -> None:
    tiles = [run(one=2.0, many=10.0), run(one=4.0, many=30.0), run(one=8.0, many=20.0)]
    below = [run(one=6.0, many=80.0), run(one=2.0, many=50.0, other=1.0), run(one=5.0, many=60.0)]
    one, many = check.side_by_side(tiles, below)
    assert (one["size"], one["amx"], one["avx512_bf16"], one["times_faster"]) == ("one", 4, 5, 1.25)
    assert (many["amx"], many["avx512_bf16"], many["times_faster"]) == (20, 60, 3)
    assert one["share_of_limit"] == 0.25 and "1.25" in check.text(one) and "25%" in check.text(one)


def test_without_limits_there_are_no_shares(check: Any) -> None:
    made = run(one=2.0)
    made["timings"][0]["share_of_limit"] = None
    (one,) = check.side_by_side([made], [run(one=4.0)])
    assert one["share_of_limit"] is None and check.text(one).endswith("-")


@pytest.mark.skipif("amx" in _cpu.supported_isas(), reason="this processor has tiles")
def test_a_processor_without_tiles_is_told_so_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "amx_check.py"), "--output", str(tmp_path / "no")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    assert done.stdout.startswith("this processor has no AMX") and done.stdout.count("\n") == 1
