"""SchedulerConfig: limits of a step and order of requests."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.options.option import config, option
from vllm_lite.errors import UsageError


@config
class SchedulerConfig:
    """Limits of a step and of the queue."""

    max_num_seqs: int = option(
        128,
        "Most requests in one step.",
        auto="128 for a server and 256 offline on CPU, 256 on a GPU",
        ge=1,
    )
    max_num_active_seqs: int | None = option(
        None, "Most requests that run at once; others wait.", auto="--max-num-seqs", ge=1
    )
    max_num_batched_tokens: int = option(
        2048,
        "Most tokens in one step.",
        auto="256 for a server on CPU, 2048 on a GPU, 4096 offline on CPU, 8192 on a GPU",
        ge=1,
        human=True,
    )
    max_num_scheduled_tokens: int | None = option(
        None, "Most tokens that are scheduled in one step.", auto="--max-num-batched-tokens", ge=1
    )
    enable_chunked_prefill: bool = option(
        True, "Spread a long prompt over several steps, next to other requests."
    )
    scheduling_policy: Literal["fcfs", "priority", "fair"] = option(
        "fcfs",
        "Order of waiting requests: by arrival, by priority (lower first), or fair: by "
        "how much each API key (without keys: each `user`) has been served.",
    )
    long_prefill_token_threshold: int = option(
        0, "Most prompt tokens of one request in one step; 0: no limit.", ge=0
    )
    long_prefill_token_threshold_adaptive: bool = option(
        False,
        "Raise that limit to an equal share of a step's tokens.",
    )
    max_num_partial_prefills: int = option(
        1, "Prompts that may be partly computed at once; 1: no limit.", ge=1
    )
    max_long_partial_prefills: int = option(
        1,
        "Of those, prompts longer than --long-prefill-token-threshold; "
        "shorter prompts pass the others.",
        ge=1,
    )
    stream_interval: int = option(1, "Tokens gathered before each streamed chunk.", ge=1)
    max_num_queued_reqs: int | None = option(
        None,
        "Most requests that wait; one more is answered 429.",
        auto="for a server 16 times --max-num-seqs, at least 2048; offline no limit",
        ge=1,
    )
    max_num_queued_tokens: int | None = option(
        None,
        "Most prompt tokens that wait; a request beyond is answered 429.",
        auto="for a server 4 million, at least 4 times --max-model-len; offline no limit",
        ge=1,
        human=True,
    )
    scheduler_target_itl_ms: float | None = option(
        None,
        "Most milliseconds of a step in which requests await their next token: prompts are cut "
        "to keep it; 0: no limit.",
        auto="for a server on a CPU 2.2 times a step without prompts, longer while many wait; "
        "else 0",
        ge=0,
    )
    scheduler_reserve_full_isl: bool = option(
        True, "Begin a prompt only if the cache has room for all of it."
    )
    watermark: float = option(
        0.0,
        "Share of the cache's blocks to keep free when a request begins while others run.",
        ge=0,
        le=0.99,
    )
    async_scheduling: bool = option(
        False,
        "Schedule a step while the previous one runs.",
        auto="on on a GPU, off on a CPU",
    )

    @property
    def step_tokens(self) -> int:
        return min(self.max_num_scheduled_tokens or 1 << 62, self.max_num_batched_tokens)

    @property
    def active_seqs(self) -> int:
        return self.max_num_active_seqs or self.max_num_seqs

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than "
                f"--max-num-seqs {self.max_num_seqs}; each request needs a token of every step, "
                "so raise the one or lower the other"
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > self.max_num_seqs:
            raise UsageError(
                f"--max-num-active-seqs {self.max_num_active_seqs} is more than --max-num-seqs "
                f"{self.max_num_seqs}, which is what a step can hold; raise the one or lower the "
                "other"
            )
        if self.max_long_partial_prefills > self.max_num_partial_prefills:
            raise UsageError(
                f"--max-long-partial-prefills {self.max_long_partial_prefills} is more than "
                f"--max-num-partial-prefills {self.max_num_partial_prefills}, which counts long "
                "prompts too; raise the one or lower the other"
            )
