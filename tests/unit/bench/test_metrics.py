"""Metrics from requests whose times are known."""

from __future__ import annotations

from array import array

import pytest

from vllm_lite.bench.metrics import measure, spread, tpot
from vllm_lite.bench.recorder import RequestResult


def result(
    start: float, ttft: float, itls: list[float], tokens: int | None = None, prompt: int = 10
) -> RequestResult:
    return RequestResult(
        prompt_tokens=prompt,
        start_time=start,
        ttft=ttft,
        itls=array("d", itls),
        latency=ttft + sum(itls),
        output_tokens=len(itls) + 1 if tokens is None else tokens,
    )


FAILED = RequestResult(prompt_tokens=99, error="HTTP 500", latency=50.0)


def test_totals_and_rates_count_successes_alone() -> None:
    results = [result(100, 0.5, [0.1, 0.1]), FAILED, result(100, 1.0, [])]
    metrics = measure(results, 2.0, (99,), {})
    assert (metrics.completed, metrics.failed) == (2, 1)
    assert (metrics.total_input, metrics.total_output) == (20, 4)
    assert (metrics.request_rate, metrics.output_rate, metrics.total_rate) == (1.0, 2.0, 12.0)
    assert metrics.goodput is None


def test_tpot_divides_by_the_tokens_after_the_first() -> None:
    # Ten tokens in three chunks: the time between chunks is not that between tokens.
    one = result(0, 0.5, [0.4, 0.5], tokens=10)
    assert tpot(one) == pytest.approx(0.1)
    assert tpot(result(0, 0.5, [])) == 0.0
    metrics = measure([one, result(0, 0.5, [])], 1.0, (), {})
    assert metrics.spreads["tpot"].mean == pytest.approx(100), "single tokens have no TPOT"
    assert metrics.spreads["itl"].mean == pytest.approx(450)
    assert metrics.spreads["e2el"].mean == pytest.approx((1400 + 500) / 2)


def test_goodput_needs_every_limit_to_hold() -> None:
    results = [result(0, 0.1, [0.01]), result(0, 0.3, [0.01]), result(0, 0.1, [0.2]), FAILED]

    def goodput(**limits: float) -> float | None:
        return measure(results, 2.0, (), limits).goodput

    assert goodput(ttft=200) == 1.0
    assert goodput(ttft=200, tpot=50) == 0.5
    assert goodput(e2el=305) == 1.0
    assert goodput(e2el=1) == 0.0


def test_percentiles_interpolate_between_neighbours() -> None:
    found = spread([0.010, 0.020, 0.030, 0.040], (50, 75, 99))
    assert (found.mean, found.median) == (pytest.approx(25), pytest.approx(25))
    assert found.std == pytest.approx(11.18034)
    assert dict(found.percentiles) == pytest.approx({50: 25, 75: 32.5, 99: 39.7})


def test_peaks_are_of_whole_seconds() -> None:
    results = [
        result(100.0, 0.2, [0.2, 0.2, 0.9]),  # chunks at 0.2 0.4 0.6 1.5
        result(100.1, 0.3, [0.3]),  # chunks at 0.4 0.7
        result(101.2, 0.3, []),  # a chunk at 1.5
    ]
    metrics = measure(results, 2.0, (), {})
    assert metrics.peak_output_rate == 5.0
    assert metrics.peak_concurrency == 2


def test_nothing_but_failures_is_zeros() -> None:
    metrics = measure([FAILED], 1.0, (99,), {"ttft": 1})
    assert (metrics.completed, metrics.failed, metrics.goodput) == (0, 1, 0.0)
    assert metrics.spreads["ttft"].percentiles == ((99, 0.0),)
    assert (metrics.peak_output_rate, metrics.peak_concurrency) == (0.0, 0)
