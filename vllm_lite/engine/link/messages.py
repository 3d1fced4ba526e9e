"""Messages between front ends and the engine core, as plain data.

Every message is a tagged msgspec struct, so no code travels and an unknown tag is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_args

import msgspec

from vllm_lite.core.step import EngineCoreOutput, EngineCoreRequest
from vllm_lite.engine.client import PauseMode
from vllm_lite.metrics.stats import EngineSnapshot, SchedulerStats
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.grammar import Refusal
from vllm_lite.worker.interface import MemoryTag

Answer = TypeVar("Answer")


class CoreJob(msgspec.Struct):
    """The first message to a core: a VllmConfig as msgpack, and how many front ends it has."""

    config: msgspec.Raw
    num_front_ends: int


class AddRequests(msgspec.Struct, tag="add"):
    """Sequences to generate; the choices of one request come together."""

    requests: list[EngineCoreRequest]


class AbortRequests(msgspec.Struct, tag="abort"):
    """Sequences to drop; unknown ids are ignored."""

    request_ids: list[str]


class Command(msgspec.Struct, Generic[Answer], tag=True):
    """A utility call to the core; the type parameter is that of its answer."""

    def read(self, answer: msgspec.Raw) -> Answer:
        """Decode the answer that a CallResult carries."""
        (kind,) = get_args(type(self).__orig_bases__[0])  # type: ignore[attr-defined]
        decoded: Answer = msgspec.msgpack.decode(answer, type=kind)
        return decoded


class ResetPrefixCache(Command[bool]):
    """Forget every cached prefix; False where blocks are in use."""


class GetStats(Command[SchedulerStats]):
    """The scheduler's counters now."""


class GetSnapshot(Command[EngineSnapshot]):
    """The requests and blocks of the core now."""


class Pause(Command[bool]):
    """Hold new sequences; answered once the running ones have ended or stand still.

    The answer is False where a resume came first.
    """

    mode: PauseMode
    clear_cache: bool
    # Memory to give back until the engine wakes up.
    releases: tuple[MemoryTag, ...] = ()


class Resume(Command[bool]):
    """End a pause; False where there was none."""


class WakeUp(Command[None]):
    """Take back the memory of `tags`; ends the pause once all is back."""

    tags: tuple[MemoryTag, ...]


class IsPaused(Command[bool]):
    """Whether new sequences are held."""


class SaveShardedState(Command[str]):
    """Write each worker's part of the weights to files; why that failed, or ""."""

    directory: str
    pattern: str
    max_size: int


class Prepare(Command[Refusal | None]):
    """Compile a canonical constraint; the answer says why it is refused, if it is.

    `params` also has the bans that may leave no token to sample.
    """

    params: SamplingParams

    def __post_init__(self) -> None:
        if self.params.structured_outputs is None:
            raise ValueError("there is no constraint to compile")


AnyCommand = (
    ResetPrefixCache
    | GetStats
    | GetSnapshot
    | Pause
    | Resume
    | WakeUp
    | IsPaused
    | SaveShardedState
    | Prepare
)


class Call(msgspec.Struct, tag="call", omit_defaults=True):
    """A command, and the front end that waits for the CallResult with the same id."""

    call_id: int
    command: AnyCommand
    front_end: int = 0


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Stop after the current step."""


ToCore = AddRequests | AbortRequests | Call | Shutdown


@dataclass
class Undecodable:
    """Stands for a message that the core cannot decode, and names who waits for an answer."""

    reason: str
    request_ids: list[str] = field(default_factory=list)
    call_id: int | None = None
    front_end: int = 0


class CoreReady(msgspec.Struct, tag="ready"):
    """The core takes requests; facts that it found out while starting."""

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
    """The outputs of one step, of all its requests."""

    outputs: list[EngineCoreOutput]
    # Absent where statistics are off.
    stats: SchedulerStats | None = None


class CallResult(msgspec.Struct, tag="result", omit_defaults=True):
    """The answer to a Call, of the type that its command expects."""

    call_id: int
    answer: msgspec.Raw
    front_end: int = 0

    @classmethod
    def of(cls, call_id: int, answer: Any, front_end: int = 0) -> CallResult:
        """The result with an answer that is to be encoded."""
        return cls(call_id, msgspec.Raw(msgspec.msgpack.encode(answer)), front_end)


FromCore = CoreReady | CoreFailed | StepOutputs | CallResult
