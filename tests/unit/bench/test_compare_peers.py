"""Tables of the comparison with other engines, also where an engine is missing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
OURS, VLLM = "ours-bf16", "vllm"
LIMITS = {
    "read_gb_s": 100.0,
    "float32_gflop_s": 500.0,
    "bfloat16_gflop_s": 1000.0,
    "int8_gop_s": 2000.0,
}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that keeps records and judges them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers.results")


def compared(results: Any, step_ms: dict[str, list[float]]) -> Any:
    found = results.Results({"processor": "one"})
    found.weight_bytes = {OURS: 10**9, VLLM: 10**9}
    found.limits = [LIMITS]
    for engine, values in step_ms.items():
        found.engines[engine] = {"title": engine, "weights": "bfloat16"}
        for turn, value in enumerate(values, 1):
            found.add(turn, engine, "decode-1", values={"step_ms": value})
        if engine == OURS:
            for turn in range(1, len(values) + 1):
                found.set_limits(turn, engine, LIMITS)
    return found


def test_medians_are_compared_and_less_time_is_better(results: Any) -> None:
    found = compared(results, {OURS: [20.0, 1000.0, 10.0], VLLM: [80.0, 90.0, 70.0]})
    (line,) = results.lines(found)
    assert (line.ours, line.theirs, line.ratio) == (20.0, 80.0, 4.0)
    assert line.target == "3 x" and line.is_met is True
    # 1 GB at 100 GB/s takes 10 ms, and 160 tokens' keys and values in 30 layers next to nothing.
    assert line.floor_share == pytest.approx(0.5, rel=0.01) and line.floor_share > 0.5
    assert "| 4.00 | 50 % | 3 x | yes |" in results.table(found)


def row(results: Any, name: str) -> Any:
    (found,) = (row for row in results.ROWS if row.name == name)
    return found


def test_a_figure_is_held_against_the_limits_beside_it(results: Any) -> None:
    found = compared(results, {OURS: [20.0]})
    found.add(2, OURS, "decode-1", values={"step_ms": 20.0})
    found.set_limits(2, OURS, LIMITS | {"read_gb_s": 25.0})
    # The median of a half and of two.
    share = found.floor_share(row(results, "decode-1.step_ms"), OURS)
    assert share == pytest.approx(1.25, rel=0.01)


def test_many_rows_are_held_against_operations(results: Any) -> None:
    found = compared(results, {OURS: [20.0]})
    found.weight_bytes[OURS] = 269_060_552
    found.add(1, OURS, "prefill", values={"tokens_per_s": 3000.0})
    found.add(1, OURS, "offline", values={"tokens_per_s": 1000.0})
    found.add(1, OURS, "large-decode-64", values={"step_ms": 200.0})
    # Two operations a parameter (106 millions in the layers) and token, and those of attention:
    # four a head's number, pair of tokens and layer.
    prompt = 2 * 106_168_320 * 1024 + 4 * 576 * 30 * 1024 * 1025 / 2
    prefill = found.floor_share(row(results, "prefill.tokens_per_s"), OURS)
    assert prefill == pytest.approx(prompt / 1e12 * 3000 / 1024, rel=0.01)
    tokens = 64 * 255 * 2 * 106_168_320 + 64 * 128 * 2 * 28_311_552
    offline = found.floor_share(row(results, "offline.tokens_per_s"), OURS)
    assert offline > tokens / 1e12 * 1000 / (64 * 128)
    # 1.03 billion parameters without the input embedding.
    large = found.floor_share(row(results, "large-decode-64.step_ms"), OURS)
    assert large == pytest.approx(64 * 2 * 1.034e9 / 1e12 / 0.2, rel=0.05)


def test_a_row_without_a_floor_or_limits_has_no_share(results: Any) -> None:
    found = compared(results, {OURS: [20.0]})
    found.add(1, OURS, "server", values={"ready_s": 2.0})
    assert found.floor_share(row(results, "server.ready_s"), OURS) is None
    bare = results.Results({"processor": "one"}, weight_bytes={OURS: 10**9})
    bare.add(1, OURS, "decode-1", values={"step_ms": 20.0})
    assert bare.floor_share(row(results, "decode-1.step_ms"), OURS) is None


def test_a_missed_target_says_so(results: Any) -> None:
    found = compared(results, {OURS: [40.0], VLLM: [80.0]})
    assert next(results.lines(found)).is_met is False


def test_a_figure_without_a_peer_is_shown_and_not_judged_against_it(results: Any) -> None:
    (line,) = results.lines(compared(results, {OURS: [40.0]}))
    assert (line.theirs, line.ratio, line.is_met) == (None, None, None)


def test_what_is_saved_can_be_gone_on_with(results: Any, tmp_path: Path) -> None:
    found = compared(results, {OURS: [40.0], VLLM: [80.0]})
    found.add(1, VLLM, "offline", error="it was late")
    results.save(found, tmp_path / "peers.json")
    again = results.load(tmp_path / "peers.json", {})
    assert again == found
    again.add(1, VLLM, "offline", values={"tokens_per_s": 5.0})
    assert not list(again.errors())


def test_an_engine_that_is_not_installed_is_a_line_that_says_what_to_do(tmp_path: Path) -> None:
    words = ["--engines", "vllm,llamacpp", "--only", "b,e", "--rounds", "1"]
    places = ["--peers", str(tmp_path), "--output", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "compare_peers.py"), *words, *places],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "failed: round 1, vllm, offline: there is no vllm environment" in done.stdout
    assert "failed: round 1, vllm, server: there is no vllm environment" in done.stdout
    assert "failed: round 1, llamacpp, offline: there is no llamacpp environment" in done.stdout
    records = json.loads((tmp_path / "out" / "peers.json").read_text())["records"]
    assert len(records) == 3 and all("make peers" in record["error"] for record in records)


def test_a_child_is_ended_with_its_children_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    processes = importlib.import_module("peers.processes")
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\nchild.wait()\n"
    )
    lines: list[str] = []
    # However slow the machine: at last there is time to begin, and then time runs out.
    for limit in (1.0, 10.0, 100.0):
        reason = processes.run_child([sys.executable, "-c", program], {}, limit, lines.append)
        assert reason == f"not done within {limit:.0f} s"
        if lines:
            break
    deadline = time.monotonic() + 60
    while _is_alive(lines[0]):
        assert time.monotonic() < deadline, "a grandchild outlives its time"


def test_a_child_that_fails_tells_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    processes = importlib.import_module("peers.processes")
    program = "import sys; print('one'); sys.exit('TypeError: no such thing')"
    lines: list[str] = []
    reason = processes.run_child([sys.executable, "-c", program], {}, 60.0, lines.append)
    assert (lines, reason) == (["one"], "ended with code 1: TypeError: no such thing")


def _is_alive(pid: str) -> bool:
    """Not gone, nor waiting for whoever adopted it to take note."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
