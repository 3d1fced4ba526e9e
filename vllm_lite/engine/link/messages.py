"""What travels between the front end and the engine core, as plain data.

Every message is a tagged msgspec struct, so the wire carries no code and an unknown tag is an
error. A step's outputs go as one message, whatever the number of requests in it.
"""

from __future__ import annotations

import msgspec

from vllm_lite.core.step import EngineCoreOutput, EngineCoreRequest
from vllm_lite.engine.client import PauseMode
from vllm_lite.metrics.stats import EngineSnapshot, SchedulerStats
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.grammar import Refusal


class AddRequests(msgspec.Struct, tag="add"):
    """Sequences to generate; the choices of one request come together."""

    requests: list[EngineCoreRequest]


class AbortRequests(msgspec.Struct, tag="abort"):
    """Sequences nobody waits for any more; unknown ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, tag="reset_prefix_cache"):
    """Forget every cached prefix; the answer is False where blocks are in use."""

    call_id: int


class GetStats(msgspec.Struct, tag="get_stats"):
    """Ask for the scheduler's counters now."""

    call_id: int


class GetSnapshot(msgspec.Struct, tag="get_snapshot"):
    """Ask for all that the core holds now."""

    call_id: int


class Pause(msgspec.Struct, tag="pause"):
    """Hold new sequences; the answer, once the others have ended or stand still, is True.

    It is False where a resume came first.
    """

    call_id: int
    mode: PauseMode
    clear_cache: bool
    # Give the cache's memory back then, until a resume.
    sleeps: bool = False


class Resume(msgspec.Struct, tag="resume"):
    """Let go on what a pause holds back; the answer tells whether there was one."""

    call_id: int


class IsPaused(msgspec.Struct, tag="is_paused"):
    """Ask whether new sequences are held."""

    call_id: int


class Prepare(msgspec.Struct, tag="prepare"):
    """Compile a canonical constraint; the answer is a Prepared.

    Beside it, `params` has what else may leave no token.
    """

    call_id: int
    params: SamplingParams

    def __post_init__(self) -> None:
        if self.params.structured_outputs is None:
            raise ValueError("there is no constraint to compile")


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Stop after the step in hand."""


class Undecodable(msgspec.Struct, tag="undecodable"):
    """Made by the core's codec of a message that it cannot read: who waits for an answer."""

    reason: str
    request_ids: list[str] = []
    call_id: int | None = None


ToCore = (
    AddRequests
    | AbortRequests
    | ResetPrefixCache
    | GetStats
    | GetSnapshot
    | Pause
    | Resume
    | IsPaused
    | Prepare
    | Shutdown
    | Undecodable
)


class CoreReady(msgspec.Struct, tag="ready"):
    """The core can take requests; what it found out about itself on the way."""

    num_blocks: int
    block_size: int
    # One line each, for the log.
    kv_cache: str
    kernels: str
    # (phase, seconds) of the core's own start, in order.
    timeline: list[tuple[str, float]]


class CoreFailed(msgspec.Struct, tag="failed"):
    """The core is about to exit; `kind` is the error's class, `message` fits one line."""

    kind: str
    message: str


class StepOutputs(msgspec.Struct, tag="outputs", omit_defaults=True):
    """What one step gave to all of its requests."""

    outputs: list[EngineCoreOutput]
    # Absent where statistics are off.
    stats: SchedulerStats | None = None


class Prepared(msgspec.Struct, tag="prepared", omit_defaults=True):
    """The answer to a Prepare: nothing, or why the constraint is refused."""

    call_id: int
    refusal: Refusal | None = None


class SnapshotTaken(msgspec.Struct, tag="snapshot"):
    """The answer to a GetSnapshot."""

    call_id: int
    value: EngineSnapshot


class CallResult(msgspec.Struct, tag="result"):
    """The answer to a message with a call_id."""

    call_id: int
    value: bool | SchedulerStats


FromCore = CoreReady | CoreFailed | StepOutputs | Prepared | SnapshotTaken | CallResult
