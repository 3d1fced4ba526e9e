"""The messages of one engine step, as plain data.

`SchedulerOutput` is a diff: a request's prompt and parameters travel once, in the step that
admits it; later steps name only changes. `ModelRunnerOutput` is the answer. `EngineCoreRequest` and
`EngineCoreOutput` are here so that the scheduler can build them without importing the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    MaskBits = npt.NDArray[np.int32]
else:
    MaskBits = Any  # msgspec resolves these types in processes without numpy


# A request asks for tokens after its prompt, or for vectors of it.
Task = SamplingParams | PoolingParams


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position.

    `token_ids[0]` is the sampled (or prompt) token, the rest are the top candidates in
    descending order; `logprobs` matches it. `rank` is that first token's rank, from 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class Pooled(NamedTuple):
    """Float32 numbers: a row for a prompt, or one for each token that is answered, in order."""

    numbers: bytes
    width: int


class EngineCoreRequest(msgspec.Struct, omit_defaults=True):
    """One sequence, as it enters the engine core (n > 1 is fanned out before)."""

    request_id: str
    prompt_token_ids: list[int]
    task: Task
    # Generation stops at any of these unless ignore_eos.
    eos_token_ids: list[int]
    arrival_time: float
    priority: int = 0
    cache_salt: str | None = None
    # The tenant whose share it takes under the fair policy.
    tenant: str = ""
    # The index of the front end that it came from.
    front_end: int = 0


class EngineCoreOutput(msgspec.Struct, omit_defaults=True):
    """One request's output of one step."""

    request_id: str
    new_token_ids: list[int]
    # One entry for each new token, where logprobs were asked for.
    new_logprobs: list[TokenLogprobs] | None = None
    # Prompt positions 1.. that this step computed, in order, where they were asked for.
    new_prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None  # stop | length | repetition | abort | error
    # The stop token id; None for eos. For finish_reason "error": the cause, in words that a
    # client may read.
    stop_reason: int | str | None = None
    # With finish_reason "error": the request is at fault, not the engine.
    is_refused: bool = False
    # Prompt tokens that the prefix cache gave, set in the request's first output.
    num_cached_tokens: int | None = None
    # Monotonic seconds of the request's first schedule, set in its first output.
    scheduled_time: float | None = None
    num_preemptions: int = 0
    # A pooling request's answer.
    pooled: Pooled | None = None
    # Drafts that the step verified, and how many of them came true.
    drafted: tuple[int, int] | None = None
    # The request's, which the output goes to.
    front_end: int = 0


@dataclass(slots=True)
class NewRequestData:
    """A request that is new to the workers."""

    request_id: str
    prompt_token_ids: list[int]
    task: Task
    # A block table for each group of layers.
    block_ids: list[list[int]]
    num_computed_tokens: int
    # Tokens already generated: non-empty only when a preempted request comes back.
    output_token_ids: list[int] = field(default_factory=list)
    # Banned with the stop token ids by min_tokens.
    eos_token_ids: Sequence[int] = ()
    # Whose earlier texts its drafts may come from.
    scope: str = ""


class StateSlots(NamedTuple):
    """The state slots that a request's tokens of one step read and write."""

    # The slot of the state before the first token; -1: zeros.
    read: int
    # (number of a token among the request's in the step, from 0, the slot of the state behind it).
    writes: list[tuple[int, int]]


@dataclass(slots=True)
class TokenMasks:
    """Allowed tokens of the constrained requests of a step; row i is that of `request_ids[i]`.

    A request with drafts has a row after each of its verified tokens, one after the other.
    """

    request_ids: list[str]
    # [R, ceil(vocabulary / 32)] int32: a bit a token, the least significant first, 1 for allowed.
    # Valid until the step is over.
    bits: MaskBits


# Masks that depend on the answers of earlier steps: asked for once the forward pass is under way.
LateMasks = Callable[[], TokenMasks | None]


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step.

    Requests are in the order of `num_scheduled_tokens`. Workers know how far a request is computed
    and go on from there; they forget a preempted one, which comes back as new. They drop before
    they add: one step may name an id as gone and as new. After a failed step an unknown id may be
    named as gone, and a known one as new.
    """

    new_requests: list[NewRequestData]
    # Blocks appended since the last step to the tables of requests that workers know: a list for
    # each group.
    new_block_ids: dict[str, list[list[int]]]
    num_scheduled_tokens: dict[str, int]
    # After how many of the last of these tokens one is sampled, for the same requests: 0 where
    # more of the prompt is to come or nothing is sampled, 1, or 1 + d where d of them are drafts.
    # Workers may draft fewer, and then compute as many fewer.
    num_verified: dict[str, int]
    total_num_scheduled_tokens: int
    # Requests that left since the last step: workers drop their state.
    finished_request_ids: list[str]
    preempted_request_ids: list[str]
    # For each request of the step, where the model has state-space layers.
    states: dict[str, StateSlots] = field(default_factory=dict)
    # Drafts that the core itself has, of requests with constraints.
    drafts: dict[str, list[int]] = field(default_factory=dict)
    # How many drafts of such requests the answer should have, for the core to cut.
    wanted_drafts: dict[str, int] = field(default_factory=dict)
    # Set after scheduling.
    token_masks: TokenMasks | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of requests that do not await their next token."""
        if self.total_num_scheduled_tokens == len(self.num_scheduled_tokens):
            return 0
        return sum(
            count
            for request_id, count in self.num_scheduled_tokens.items()
            if count > self.num_verified[request_id]
        )

    @property
    def dropped_request_ids(self) -> Iterator[str]:
        """Requests whose state workers drop before they add the new ones."""
        yield from self.finished_request_ids
        yield from self.preempted_request_ids
        for request in self.new_requests:
            yield request.request_id

    @property
    def says_anything(self) -> bool:
        """Whether workers need this step."""
        return bool(
            self.num_scheduled_tokens or self.finished_request_ids or self.preempted_request_ids
        )


@dataclass(slots=True)
class ModelRunnerOutput:
    """The workers' answer to one SchedulerOutput."""

    # request id -> the tokens sampled in this step, in order; absent where none was due.
    sampled_token_ids: dict[str, list[int]]
    # One for each of these tokens, for the requests that asked.
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    # request id -> drafts that were verified, for the requests that had any.
    num_draft_tokens: dict[str, int] = field(default_factory=dict)
    # request id -> what may follow its tokens, where that is wanted and there is anything.
    drafts: dict[str, list[int]] = field(default_factory=dict)
    # request id -> positions computed in this step (prompt position p+1 for computed p).
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    # request id -> `EngineCoreOutput.pooled`, for prompts that are computed.
    pooled: dict[str, Pooled] = field(default_factory=dict)
    # request id -> cause, for requests that failed alone in this step.
    errors: dict[str, str] = field(default_factory=dict)
    # Those of `errors` whose logits are sound, if they have bans, but leave no token to sample.
    stuck: list[str] = field(default_factory=list)
