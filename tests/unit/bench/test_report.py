"""The printed table word for word, and the JSON's keys and file names."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from vllm_lite.bench.load import RateChange
from vllm_lite.bench.metrics import LoadMetrics, Spread
from vllm_lite.bench.options.load import ServeOptions
from vllm_lite.bench.recorder import RequestResult
from vllm_lite.bench.report import (
    check_result_folder,
    result_path,
    run_json,
    show,
    table,
    write_json,
)
from vllm_lite.cli.bench import parse_serve
from vllm_lite.errors import UsageError

NOW = datetime(2026, 2, 3, 4, 5, 6)
SPREAD = Spread(mean=12.345, median=11.0, std=1.5, percentiles=((99.0, 20.0),))
METRICS = LoadMetrics(
    duration=2.0,
    completed=7,
    failed=1,
    total_input=700,
    total_inputs=7,
    total_output=90,
    goodput=3.0,
    peak_output_rate=60.0,
    peak_concurrency=5,
    spreads=dict.fromkeys(("ttft", "tpot", "itl", "e2el"), SPREAD),
    values={},
)
GOLDEN = """\
============ Serving Benchmark Result ============
Successful requests:                     7
Failed requests:                         1
Maximum request concurrency:             4
Request rate configured (RPS):           2.50
Benchmark duration (s):                  2.00
Total input tokens:                      700
Total generated tokens:                  90
Request throughput (req/s):              3.50
Request goodput (req/s):                 3.00
Output token throughput (tok/s):         45.00
Peak output token throughput (tok/s):    60.00
Peak concurrent requests:                5.00
Total token throughput (tok/s):          395.00
---------------Time to First Token----------------
Mean TTFT (ms):                          12.35
Median TTFT (ms):                        11.00
P99 TTFT (ms):                           20.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          12.35
Median TPOT (ms):                        11.00
P99 TPOT (ms):                           20.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           12.35
Median ITL (ms):                         11.00
P99 ITL (ms):                            20.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          12.35
Median E2EL (ms):                        11.00
P99 E2EL (ms):                           20.00
==================================================
"""
KEYS = (
    "date endpoint_type backend label model_id tokenizer_id num_prompts tp request_rate "
    "burstiness max_concurrency duration completed failed total_input_tokens "
    "total_output_tokens request_throughput request_goodput output_throughput "
    "total_token_throughput max_output_tokens_per_s max_concurrent_requests rtfx "
    "mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms latencies queue_times"
)


def options(words: str = "") -> ServeOptions:
    return parse_serve(words.split())


def run_of(words: str, changes: tuple[RateChange, ...] = ()) -> dict[str, Any]:
    names = {"model_id": "org/model", "tokenizer_id": "demo"}
    results = [RequestResult(3, latency=1.0), RequestResult(4, error="HTTP 500")]
    run = run_json(METRICS, results, options(words), names, NOW, changes)
    return json.loads(json.dumps(run, allow_nan=False))


def test_the_table_is_vllm_s() -> None:
    words = "--max-concurrency 4 --request-rate 2.5 --percentile-metrics ttft,tpot,itl,e2el"
    printed = table(METRICS, options(words), None, None).splitlines()
    assert [line.rstrip() for line in printed] == GOLDEN.splitlines()
    assert all(len(line) >= 50 for line in printed)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_is_shown_lines_and_colours_and_a_pipe_the_text(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    title, row = " A Title ", f"{'Requests:':<40} {7:<10}"
    show(text := f"{title:=^50}\n{row}\n\nCOLD:\nAvg time: 1.5 seconds\n{'=' * 50}")
    out = capsys.readouterr().out
    if not is_terminal:
        assert out == text + "\n"
        return
    assert "==" not in out and all(word in out for word in ("A Title", "COLD"))
    assert re.search("│ Requests +│.*7", out) and re.search("│ Avg time +│.*1.5 seconds", out)


def test_lines_that_were_not_asked_for_are_absent() -> None:
    shown = table(METRICS, options("--percentile-metrics itl"), None, None)
    for absent in ("concurrency:", "configured", "TTFT", "E2EL"):
        assert absent not in shown
    assert "P99 ITL (ms):" in shown


def test_json_keys_are_vllm_s() -> None:
    run = run_of("--metadata tp=1 --label mine --percentile-metrics ttft")
    assert " ".join(run) == KEYS
    assert (run["date"], run["label"], run["request_rate"]) == ("20260203-040506", "mine", "inf")
    assert run["max_concurrency"] is None and run["tp"] == "1"


def test_details_come_only_when_asked_for() -> None:
    detailed = set(run_of("--save-detailed")) - set(run_of(""))
    assert detailed == {
        "input_lens",
        "output_lens",
        "ttfts",
        "itls",
        "start_times",
        "generated_texts",
        "errors",
    }
    run = run_of("--save-detailed")
    assert (run["input_lens"], run["errors"]) == ([3, 4], ["", "HTTP 500"])


def test_a_ramp_up_tells_its_changes() -> None:
    words = "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2"
    run = run_of(words, (RateChange(1, 0.5),))
    assert (run["ramp_up_strategy"], run["ramp_up_start_rps"]) == ("linear", 1)
    assert run["rps_change_events"] == [{"rps": 1, "timestamp": "2026-02-03T04:05:04.500000"}]
    name = result_path(options(words), "demo", NOW).name
    assert name == "openai-ramp-up-linear-1qps-2qps-demo-20260203-040506.json"


def test_file_names_tell_the_run() -> None:
    def name(words: str) -> str:
        return str(result_path(options(words), "org/model", NOW))

    assert name("") == "openai-infqps-model-20260203-040506.json"
    assert name("--request-rate 4 --max-concurrency 8 --label a --result-dir out") == (
        "out/a-4.0qps-concurrency8-model-20260203-040506.json"
    )
    assert name("--result-dir out --result-filename run.json") == "out/run.json"


def test_appending_adds_a_line(tmp_path: Path) -> None:
    path = tmp_path / "made" / "runs.json"
    for number in range(2):
        write_json(path, {"run": number}, append=True)
    assert [json.loads(line)["run"] for line in path.read_text().splitlines()] == [0, 1]
    write_json(path, {"run": 2})
    assert json.loads(path.read_text()) == {"run": 2}
    with pytest.raises(UsageError, match="cannot write"):
        write_json(path / "below", {})
    with pytest.raises(UsageError, match="cannot write results to"):
        check_result_folder(options(f"--result-dir {path}"))
    check_result_folder(options(f"--result-dir {tmp_path / 'new'}"))
    assert list((tmp_path / "new").iterdir()) == []
