"""One sequence inside the engine core and its status machine.

Invariants: 0 <= num_computed_tokens <= num_tokens == len(token_ids); steps in flight count in
`num_ahead_tokens` and `num_expected_tokens` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from vllm_lite.core.step import EngineCoreRequest, Task
from vllm_lite.repetition import RepetitionDetector
from vllm_lite.sampling_params import SamplingParams


class RequestStatus(IntEnum):
    """A request's status; FINISHED_STOPPED and later ones are final."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6
    FINISHED_REPETITION = 7

    @property
    def is_finished(self) -> bool:
        """Whether the request will never run again."""
        return self >= RequestStatus.FINISHED_STOPPED

    @property
    def finish_reason(self) -> str | None:
        """The finish reason for clients; None while the request is unfinished."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
    RequestStatus.FINISHED_REPETITION: "repetition",
}


@dataclass(slots=True, eq=False)
class Request:
    """A sequence to continue or pool, with the scheduler's state of it."""

    request_id: str
    prompt_token_ids: list[int]
    task: Task
    eos_token_ids: frozenset[int] = frozenset()
    arrival_time: float = 0.0
    # Smaller runs earlier, under the priority policy.
    priority: int = 0
    cache_salt: str | None = None
    # The tenant whose share it takes under the fair policy.
    tenant: str = ""
    front_end: int = 0

    status: RequestStatus = RequestStatus.WAITING
    # Prompt and output; grows by append_token only.
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    # Tokens whose keys and values lie in the cache.
    num_computed_tokens: int = 0
    # Tokens that steps in flight compute, and the most that they sample.
    num_ahead_tokens: int = 0
    num_expected_tokens: int = 0
    # A pooling request ends with its prompt and has no sampling parameters.
    is_sampling: bool = field(init=False)
    sampling_params: SamplingParams = field(init=False)
    # False with prompt logprobs, which need the whole prompt computed.
    can_read_prefix_cache: bool = field(init=False)
    # Whether a step may be planned on tokens that are not sampled yet.
    can_run_ahead: bool = True
    # What its constraint takes to follow the last token, for the next step.
    drafts: Sequence[int] = ()
    # Generation stops once num_tokens reaches this; the scheduler lowers it to the context.
    max_total_tokens: int = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    # A hash for each full block of known tokens, made on demand.
    block_hashes: list[bytes] = field(default_factory=list)
    # Of the first admission; None before it.
    num_cached_tokens: int | None = None
    scheduled_time: float | None = None
    num_preemptions: int = 0
    # Prompt positions whose logprobs were delivered; a recomputed position is not sent again.
    num_prompt_logprobs_sent: int = 0
    has_first_output: bool = False
    # Ends the text at repeats.
    repetition: RepetitionDetector | None = field(init=False, default=None)
    stop_reason: int | str | None = None

    def __post_init__(self) -> None:
        params = self.task
        self.token_ids = list(self.prompt_token_ids)
        self.num_prompt_tokens = self.num_tokens = len(self.token_ids)
        self.is_sampling = isinstance(params, SamplingParams)
        if not isinstance(params, SamplingParams):
            self.max_total_tokens = self.num_tokens
            self.can_read_prefix_cache = not params.skip_reading_prefix_cache
            return
        self.sampling_params = params
        self.can_read_prefix_cache = params.prompt_logprobs is None
        limit = params.max_tokens
        self.max_total_tokens = self.num_tokens + limit if limit is not None else 1 << 62
        self.stop_token_ids = frozenset(params.stop_token_ids or ())
        detection = params.repetition_detection
        if detection is not None and detection.max_pattern_size:
            self.repetition = RepetitionDetector(detection)

    @classmethod
    def from_message(cls, message: EngineCoreRequest) -> Request:
        return cls(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            task=message.task,
            eos_token_ids=frozenset(message.eos_token_ids),
            arrival_time=message.arrival_time,
            priority=message.priority,
            cache_salt=message.cache_salt,
            tenant=message.tenant,
            front_end=message.front_end,
        )

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_planned_tokens(self) -> int:
        """Tokens that are computed, or will be by steps in flight."""
        return self.num_computed_tokens + self.num_ahead_tokens

    @property
    def num_missing_tokens(self) -> int:
        """Known or expected tokens that no step computes yet."""
        return self.num_tokens + self.num_expected_tokens - self.num_planned_tokens

    @property
    def must_wait(self) -> bool:
        """Whether no step can be planned before those in flight are answered."""
        if not self.num_expected_tokens:
            return not (self.is_sampling or self.num_missing_tokens)
        return (
            not self.can_run_ahead
            # The steps in flight reach its greatest length.
            or self.num_tokens + self.num_expected_tokens >= self.max_total_tokens
        )

    def num_drafts(self, most: int) -> int:
        """The most drafts, up to `most`, that may follow the last known or expected token."""
        if not self.is_sampling:
            return 0
        if not self.can_run_ahead:
            most = min(most, len(self.drafts))
        return min(most, self.max_total_tokens - self.num_tokens - self.num_expected_tokens - 1)

    def plan(self, num_tokens: int, num_verified: int) -> None:
        """Count a planned step that computes `num_tokens` and samples after `num_verified`."""
        self.num_ahead_tokens += num_tokens
        self.num_expected_tokens += num_verified

    def answer(self, num_tokens: int, num_verified: int, num_sampled: int) -> None:
        """Count the answer of the oldest step in flight, planned with these numbers.

        Rejected drafts are not computed tokens.
        """
        self.num_computed_tokens += num_tokens - (num_verified - num_sampled)
        self.num_ahead_tokens -= num_tokens
        self.num_expected_tokens -= num_verified

    def start_over(self) -> None:
        """Reset the progress; no step may be in flight."""
        self.num_computed_tokens = self.num_ahead_tokens = self.num_expected_tokens = 0

    def append_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.num_tokens += 1
