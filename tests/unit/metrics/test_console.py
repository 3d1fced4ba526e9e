"""The throughput line says what happened, and nothing when nothing does."""

from __future__ import annotations

import logging
import re

import pytest

from vllm_lite.metrics.engine_metrics import ConsoleStats
from vllm_lite.metrics.stats import SchedulerStats, SpecDecodingStats, StepStats


def test_the_line_has_the_known_form() -> None:
    console = ConsoleStats("cpu")
    busy = SchedulerStats(
        num_running=2, num_waiting=1, kv_cache_usage=0.125, prefix_cache_queries=100,
        prefix_cache_hits=25,
    )  # fmt: skip
    console.record(busy, StepStats(num_generation_tokens=5, num_prompt_tokens=9))
    line = console.log()
    assert line is not None
    assert re.fullmatch(
        r"Engine 000: Avg prompt throughput: \d+\.\d tokens/s, "
        r"Avg generation throughput: \d+\.\d tokens/s, Running: 2 reqs, Waiting: 1 reqs, "
        r"CPU KV cache usage: 12\.5%, Prefix cache hit rate: 25\.0%",
        line,
    )


def test_idle_is_one_line_of_zeros_then_silence() -> None:
    console = ConsoleStats("cpu")
    assert console.log() is None
    console.record(SchedulerStats(), StepStats(num_generation_tokens=1))
    assert console.log() is not None
    zeros = console.log()
    assert zeros is not None and "generation throughput: 0.0" in zeros
    assert console.log() is None
    assert console.log() is None


def test_cached_tokens_are_no_throughput() -> None:
    console = ConsoleStats("cpu")
    console.record(None, StepStats(num_prompt_tokens=64, num_cached_tokens=64))
    assert console.log() is None


def test_preemptions_show_while_they_happen() -> None:
    console = ConsoleStats("cuda")
    console.record(SchedulerStats(num_running=1, num_preemptions=3), StepStats())
    first, second = console.log(), console.log()
    assert first is not None and "Preemptions: 3" in first and "GPU KV cache" in first
    assert second is not None and "Preemptions" not in second


def test_drafts_have_a_line_of_their_own_while_there_are_any(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    caplog.set_level(logging.INFO)
    console = ConsoleStats("cpu")
    for _ in range(2):
        drafted = SpecDecodingStats(4, 10, [3, 1])
        console.record(SchedulerStats(num_running=1, spec_decoding=drafted), StepStats())
        console.log()
    (line,) = {text for text in caplog.messages if text.startswith("SpecDecoding metrics: ")}
    assert "Mean acceptance length: 2.00" in line and "Accepted: 4 tokens, Drafted: 10" in line
    assert line.endswith("acceptance rate: 0.750, 0.250, Avg Draft acceptance rate: 40.0%")
