"""Statistics of the engine core: plain data that travels with its outputs.

Counters are totals since the start, so that a report may be
skipped; the reader takes differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class SpecDecodingStats(msgspec.Struct):
    """Totals of what was drafted."""

    # Times that a request had drafts, and how many.
    num_drafts: int = 0
    num_draft_tokens: int = 0
    # Of the first draft, of the second, and so on, how many came true.
    num_accepted_tokens_per_pos: list[int] = []

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that came true."""
        return sum(self.num_accepted_tokens_per_pos)

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        counts = self.num_accepted_tokens_per_pos
        counts += [0] * (num_draft_tokens - len(counts))
        for position in range(num_accepted_tokens):
            counts[position] += 1


class SchedulerStats(msgspec.Struct, omit_defaults=True):
    """State of the scheduler and its KV cache after a step.

    Blocks: free + cached + used = total, where `cached` are unused blocks whose content can
    still be hit, and the null block counts nowhere.
    """

    num_running: int = 0
    num_waiting: int = 0
    # Share of the blocks that requests hold, 0 to 1.
    kv_cache_usage: float = 0.0
    # Totals since the start, in tokens; a request counts once, when it is first admitted.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_total_blocks: int = 0
    # Whether the cache's memory is given back.
    is_asleep: bool = False
    # Absent where nothing is drafted.
    spec_decoding: SpecDecodingStats | None = None

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_total_blocks - self.num_free_blocks - self.num_cached_blocks

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of the looked-up tokens that the prefix cache gave, 0 to 1."""
        queries = self.prefix_cache_queries
        return self.prefix_cache_hits / queries if queries else 0.0


class RequestSnapshot(msgspec.Struct):
    """One request at a moment; seconds since it came, and of those until it first ran."""

    request_id: str
    # Whose it is; not for others to see.
    tenant: str
    age: float
    waited: float
    is_running: bool
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    num_blocks: int


class EngineSnapshot(msgspec.Struct):
    """All of an engine at a moment, in monotonic seconds; counts are totals since the start."""

    time: float
    stats: SchedulerStats
    num_steps: int
    # From a step's submission to its answer.
    step_seconds: float
    # A request in a step is a row; it has one token or a chunk of its prompt's.
    num_rows: int
    num_tokens: int
    # Every stride-th block: -2 free, -1 cached, else the index of a request that holds it, beyond
    # the requests where it is none of them.
    blocks: list[int]
    stride: int
    requests: list[RequestSnapshot]
    # (phase, seconds) of the engine's start.
    start: list[tuple[str, float]] = []


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
