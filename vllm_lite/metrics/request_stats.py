"""Statistics of requests in one step: plain numbers for the metrics.

Knows no metrics library and no text. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FinishedRequest:
    """One sequence that ended."""

    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    max_tokens: int | None
    num_preemptions: int
    e2e_latency: float
    # Absent where the sequence never ran, or never gave a token.
    queue_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None


@dataclass(slots=True)
class FinishedGroup:
    """A whole request, all of its choices."""

    n: int
    max_num_generation_tokens: int


@dataclass(slots=True)
class StepStats:
    """One step's news of all requests."""

    num_generation_tokens: int = 0
    # Of sequences whose first token came in this step.
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    first_token_latencies: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)
    finished_groups: list[FinishedGroup] = field(default_factory=list)
