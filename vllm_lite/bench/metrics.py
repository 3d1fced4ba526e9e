"""The arithmetic of a load: from what became of each request to rates and percentiles.

Definitions are those of vLLM's benchmark. Knows no report and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vllm_lite.bench.recorder import RequestResult


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over all requests, in milliseconds; zeros where there is no value."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """A whole load. Rates are per second of its duration."""

    duration: float
    completed: int
    failed: int
    total_input: int
    total_inputs: int
    total_output: int
    goodput: float | None
    peak_output_rate: float
    peak_concurrency: int
    spreads: Mapping[str, Spread]
    # What the spreads are of, in seconds.
    values: Mapping[str, Sequence[float]]

    @property
    def request_rate(self) -> float:
        return self.completed / self.duration

    @property
    def input_rate(self) -> float:
        """Prompts per second; a request may hold several."""
        return self.total_inputs / self.duration

    @property
    def output_rate(self) -> float:
        return self.total_output / self.duration

    @property
    def total_rate(self) -> float:
        return (self.total_input + self.total_output) / self.duration


def measure(
    results: Sequence[RequestResult],
    duration: float,
    percentiles: Sequence[float],
    limits: Mapping[str, float],
) -> LoadMetrics:
    """Count and spread `results`; `limits` are those of goodput, metric to milliseconds."""
    good = [result for result in results if result.is_success]
    peak_output, peak_concurrency = _peaks(good)
    values: dict[str, list[float]] = {
        "ttft": [result.ttft for result in good],
        "tpot": [tpot(result) for result in good if num_output(result) > 1],
        "itl": [gap for result in good for gap in result.itls],
        "e2el": [result.latency for result in good],
        "client_queue_time": [result.queue_time for result in good],
        "e2el_including_client_queue": [result.latency + result.queue_time for result in good],
    }
    return LoadMetrics(
        duration=duration,
        completed=len(good),
        failed=len(results) - len(good),
        total_input=sum(result.prompt_tokens for result in good),
        total_inputs=sum(result.num_inputs for result in good),
        total_output=sum(num_output(result) for result in good),
        goodput=_count_within(good, limits) / duration if limits else None,
        peak_output_rate=peak_output,
        peak_concurrency=peak_concurrency,
        spreads={name: spread(listed, percentiles) for name, listed in values.items()},
        values=values,
    )


def num_output(result: RequestResult) -> int:
    """Generated tokens, 0 where nobody counted them."""
    return result.output_tokens or 0


def tpot(result: RequestResult) -> float:
    """Seconds per output token after the first; 0 for a single token."""
    later = num_output(result) - 1
    return (result.latency - result.ttft) / later if later > 0 else 0.0


def spread(seconds: Sequence[float], percentiles: Iterable[float]) -> Spread:
    """Mean, median, deviation and percentiles of `seconds`, in milliseconds."""
    listed = np.asarray(seconds if len(seconds) else [0.0], dtype=np.float64) * 1000
    return Spread(
        mean=float(listed.mean()),
        median=float(np.median(listed)),
        std=float(listed.std()),
        percentiles=tuple((p, float(np.percentile(listed, p))) for p in percentiles),
    )


def _count_within(good: Iterable[RequestResult], limits: Mapping[str, float]) -> int:
    return sum(
        all(
            {"ttft": result.ttft, "tpot": tpot(result), "e2el": result.latency}[name] * 1000
            <= limit
            for name, limit in limits.items()
        )
        for result in good
    )


def _peaks(good: Sequence[RequestResult]) -> tuple[float, int]:
    """The most chunks in a second, and the most requests that a second has seen."""
    if not good:
        return 0.0, 0
    origin = min(result.start_time for result in good)
    seconds = int(max(r.start_time + r.latency for r in good) - origin) + 1
    chunks = np.zeros(seconds, dtype=np.int64)
    running = np.zeros(seconds + 1, dtype=np.int64)
    for result in good:
        begin = result.start_time - origin
        times = begin + result.ttft + np.cumsum([0.0, *result.itls])
        np.add.at(chunks, np.minimum(times.astype(np.int64), seconds - 1), 1)
        running[int(begin)] += 1
        running[int(begin + result.latency) + 1] -= 1
    return float(chunks.max()), int(np.cumsum(running).max())
