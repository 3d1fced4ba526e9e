"""A request's own times, as `metrics` of its reply; milliseconds. Knows no wire format."""

from __future__ import annotations

from vllm_lite.outputs import RequestMetrics


def request_timings(metrics: RequestMetrics | None, num_tokens: int) -> dict[str, float | None]:
    """Times of a request that generated `num_tokens` with one choice; None where unknown.

    As in vLLM: the first token's time counts from the first schedule, the generation from the
    first token to the last, and the speed is all tokens over the time from schedule to end.
    """
    if metrics is None:
        metrics = RequestMetrics(arrival_time=0.0)
    arrival, scheduled = metrics.arrival_time, metrics.first_scheduled_time
    first, last = metrics.first_token_time, metrics.last_token_time
    decode = _between(first, last)
    whole = _between(scheduled, last)
    return {
        "time_to_first_token_ms": _between(scheduled, first),
        "generation_time_ms": decode,
        "queue_time_ms": _between(arrival, scheduled),
        "mean_itl_ms": None if decode is None or num_tokens < 2 else decode / (num_tokens - 1),
        "tokens_per_second": num_tokens / whole * 1000 if whole else None,
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0) * 1000
