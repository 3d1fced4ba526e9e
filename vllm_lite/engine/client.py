"""The interface between the server and an engine: AsyncLLM, or a fake in a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, get_args

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import RequestError
from vllm_lite.metrics.stats import EngineSnapshot
from vllm_lite.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.interface import MemoryTag

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from vllm_lite.tokenizer.tokenizer import Tokenizer


class PromptDict(TypedDict, total=False):
    """A prompt by name: `prompt` text, or `prompt_token_ids` with `prompt` only for display."""

    prompt: str
    prompt_token_ids: list[int]
    cache_salt: str


Prompt = str | list[int] | PromptDict

# Running requests end with "abort" when the engine pauses, run to their end, or stand still.
PauseMode = Literal["abort", "wait", "keep"]
# Memory that a sleep may release.
SLEEP_TAGS: tuple[MemoryTag, ...] = ("weights", "kv_cache")
# By level of sleep.
_RELEASED: dict[int, tuple[MemoryTag, ...]] = {0: (), 1: ("kv_cache",), 2: SLEEP_TAGS}


@dataclass(frozen=True, slots=True)
class Origin:
    """A request's tenant and trace."""

    # The tenant whose share it takes under the fair policy; "" is one too.
    tenant: str = ""
    # Headers of the trace that it is a part of.
    trace_headers: Mapping[str, str] = field(default_factory=dict)


NOBODY = Origin()


class EngineClient(Protocol):
    """An engine for the server; all methods belong to one event loop."""

    config: VllmConfig

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; UsageError with --skip-tokenizer-init."""

    @property
    def registry(self) -> CollectorRegistry | None:
        """The metrics of this engine; None with --disable-log-stats."""

    @property
    def errored(self) -> bool:
        """Whether the engine is dead; it never comes back."""

    @property
    def dead_error(self) -> BaseException:
        """The error that every waiting caller got when the engine died."""

    @property
    def is_running(self) -> bool:
        """Whether the engine takes requests."""

    @property
    def num_unfinished_elsewhere(self) -> int:
        """Sequences of other front ends of the same engine."""

    async def prepare(self, params: SamplingParams) -> None:
        """Compile the constraint of `params`, so that generate() need not wait for it.

        Raises RequestError for a constraint that is bad, unsupported or too big. Await it before
        the answer's headers; without a constraint it returns at once.
        """

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        origin: Origin = NOBODY,
        is_part: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one request; closing or cancelling the iterator aborts it.

        With `is_part`, for a part of an admitted request, the queue's limits do not apply.
        Raises RequestError (bad prompt or parameters, queue full, draining) and
        EngineDeadError here, before the first item. Items may raise EngineGenerateError
        (this request failed alone) and EngineDeadError.
        """

    def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        origin: Origin = NOBODY,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """The result of one request to a pooling engine, raising what generate() raises."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their iterators give a last output with finish_reason "abort"."""

    async def check_health(self) -> None:
        """Raise EngineDeadError where the engine is dead or stuck."""

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while blocks are in use."""

    async def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Begin no new requests until resume_generation(); they wait.

        Returns once running ones have ended or stand still. With `clear_cache` cached
        prefixes are then forgotten, except in mode "keep".
        """

    async def resume_generation(self) -> None:
        """End a pause."""

    async def is_paused(self) -> bool:
        """Whether new requests wait for resume_generation()."""

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause and forget the cache; level 1 releases its memory, level 2 that of weights too.

        Raises RequestError for an engine without --enable-sleep-mode, or an unknown level.
        """

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take back the memory of `tags`, by default of all; ends sleep() once all is back."""

    async def is_sleeping(self) -> bool:
        """Whether memory is released."""

    async def snapshot(self) -> EngineSnapshot:
        """The engine's requests and blocks, at most half a second old."""

    def get_default_sampling_params(self) -> dict[str, Any]:
        """Sampling defaults of the model's generation config, as SamplingParams fields."""

    async def shutdown(self, timeout: float = 0.0) -> None:
        """Take no more requests, let running ones finish for `timeout` seconds, then stop."""


def memory_to_release(
    config: VllmConfig, level: object, mode: object = "abort"
) -> tuple[MemoryTag, ...]:
    """The memory that a sleep releases; raises RequestError for an unknown level or mode.

    At level 0 it is paused; level 1 gives the KV cache's memory back to the system as well, and
    level 2 that of the weights, which are read again when it wakes up.
    """
    if not config.model.enable_sleep_mode:
        raise RequestError("the engine was started without --enable-sleep-mode")
    if type(level) is not int or level not in _RELEASED:
        raise RequestError("level must be 0, 1 or 2", "level")
    if mode not in get_args(PauseMode) or (level and mode == "keep"):
        raise RequestError("mode must be abort or wait, or keep at level 0", "mode")
    return _RELEASED[level]


def memory_to_wake(tags: Collection[str] | None) -> tuple[MemoryTag, ...]:
    """The `tags`, all for None; raises RequestError for unknown ones."""
    unknown = [tag for tag in tags or () if tag not in SLEEP_TAGS]
    if unknown:
        raise RequestError(
            f"tags must be among {', '.join(SLEEP_TAGS)}, got {unknown[0]!r:.40}", "tags"
        )
    return tuple(tag for tag in SLEEP_TAGS if not tags or tag in tags)
