"""What the server sees of an engine, and nothing more.

Anything that satisfies `EngineClient` can be served: AsyncLLM, or a fake in a test. The
protocol knows no process, socket or tensor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.metrics.stats import EngineSnapshot
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from vllm_lite.tokenizer.tokenizer import Tokenizer


class PromptDict(TypedDict, total=False):
    """A prompt by name: `prompt` text, or `prompt_token_ids` with `prompt` only for display."""

    prompt: str
    prompt_token_ids: list[int]
    cache_salt: str


Prompt = str | list[int] | PromptDict

# What becomes of the requests that run when the engine pauses: they end with "abort", run to
# their end, or stand still until it goes on.
PauseMode = Literal["abort", "wait", "keep"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from."""

    # Whose share of the engine it takes under the fair policy; "" is a tenant too.
    tenant: str = ""
    # Headers of the trace that it is a part of.
    trace_headers: Mapping[str, str] = field(default_factory=dict)


NOBODY = Origin()


class EngineClient(Protocol):
    """An engine as its users see it; all methods belong to one event loop."""

    config: VllmConfig

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; UsageError with --skip-tokenizer-init."""
        ...

    @property
    def registry(self) -> CollectorRegistry | None:
        """The metrics of this engine; None with --disable-log-stats."""
        ...

    @property
    def errored(self) -> bool:
        """Whether the engine is dead; it never comes back."""
        ...

    @property
    def dead_error(self) -> BaseException:
        """What every waiting caller was told when the engine died."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the engine takes requests."""
        ...

    @property
    def num_unfinished_elsewhere(self) -> int:
        """Sequences that other front ends of the same engine have in it."""
        ...

    async def prepare(self, params: SamplingParams) -> None:
        """Compile what `params` constrain the text to, so that generate() need not wait for it.

        Raises RequestError for a constraint that is bad, unsupported or too big. Await it before
        the answer's headers; without a constraint it returns at once.
        """
        ...

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

        One that is a part of a request that was let in goes in however much waits.
        Raises RequestError (bad prompt or parameters, queue full, draining) and
        EngineDeadError here, before the first item. Items may raise EngineGenerateError
        (this request failed alone) and EngineDeadError.
        """
        ...

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their iterators give a last output with finish_reason "abort"."""
        ...

    async def check_health(self) -> None:
        """Raise EngineDeadError where the engine is dead or stuck."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False where blocks are in use."""
        ...

    async def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Begin no new requests until resume_generation(); they wait.

        Returns once those that run have ended or stand still. With `clear_cache` cached
        prefixes are then forgotten, except in mode "keep".
        """
        ...

    async def resume_generation(self) -> None:
        """Let go on what a pause holds back."""
        ...

    async def is_paused(self) -> bool:
        """Whether new requests wait for resume_generation()."""
        ...

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause and forget the cache; at level 1 its memory is given back until wake_up().

        Raises RequestError for what the engine was not started for.
        """
        ...

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Go on after sleep(), unless `tags` name only weights, which stayed."""
        ...

    async def is_sleeping(self) -> bool:
        """Whether the cache's memory is given back."""
        ...

    async def snapshot(self) -> EngineSnapshot:
        """What the engine holds now, or held less than half a second ago."""
        ...

    def get_default_sampling_params(self) -> dict[str, Any]:
        """Sampling defaults of the model's generation config, as SamplingParams fields."""
        ...

    async def shutdown(self, timeout: float = 0.0) -> None:
        """Take no more requests, let running ones finish for `timeout` seconds, then stop."""
        ...
