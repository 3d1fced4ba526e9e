"""AsyncLLM: the engine for asyncio users and the server.

One task distributes the core's outputs to the requests' readers. Sending to the core never blocks,
so a request is aborted at once wherever its reader stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, cast

from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import Task
from vllm_lite.engine.client import (
    NOBODY,
    EngineClient,
    Origin,
    PauseMode,
    Prompt,
    memory_to_release,
    memory_to_wake,
)
from vllm_lite.engine.front.admission import Admission, Place, PreparedConstraints, fan_out
from vllm_lite.engine.front.input_processor import InputProcessor, ProcessedInput, check_priority
from vllm_lite.engine.front.output_processor import (
    OutputCollector,
    OutputProcessor,
    ProcessedStep,
    in_turns,
)
from vllm_lite.engine.front.request_state import RequestState
from vllm_lite.engine.link.core_client import AsyncMPClient, log_ready
from vllm_lite.engine.link.core_handle import CoreHandle
from vllm_lite.engine.link.core_process import launch_core
from vllm_lite.engine.link.messages import (
    CoreReady,
    GetSnapshot,
    GetStats,
    IsPaused,
    Pause,
    Prepare,
    ResetPrefixCache,
    Resume,
    WakeUp,
)
from vllm_lite.errors import (
    EngineDeadError,
    EngineGenerateError,
    RequestError,
    UnavailableError,
    UsageError,
)
from vllm_lite.log import init_logger
from vllm_lite.metrics.board import Board
from vllm_lite.metrics.engine_metrics import EngineMetrics, NoMetrics, engine_metrics
from vllm_lite.metrics.stats import EngineSnapshot, SchedulerStats
from vllm_lite.outputs import AnyOutput, PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = init_logger(__name__)


class AsyncLLM(EngineClient):
    """An engine core of its own, for one event loop. Methods are described at EngineClient."""

    def __init__(
        self,
        config: VllmConfig,
        core: CoreHandle,
        *,
        tokenizer: Tokenizer | None = None,
        board: Board | None = None,
    ) -> None:
        """`core` has been started with `config`; returns once it is ready.

        `board` connects to other front ends of the same core. Unless given, the tokenizer loads
        while the core does. Raises the error that keeps the core from starting.
        """
        try:
            if tokenizer is None and not config.model.skip_tokenizer_init:
                tokenizer = load_tokenizer(config)
            self._inputs = InputProcessor(config, tokenizer)
            self._outputs = OutputProcessor(config, tokenizer)
        except BaseException:
            core.kill()
            core.close()
            raise
        self._core = AsyncMPClient(core)
        self.config = config
        self._tokenizer = tokenizer
        self._prepared = PreparedConstraints()
        board = board or Board()
        self._metrics: EngineMetrics | NoMetrics = engine_metrics(
            config, self._core.ready.num_blocks, board, is_first=core.front_end == 0
        )
        self._admission = Admission(config.scheduler, self._metrics, board)
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: asyncio.Event | None = None
        self._is_draining = False

    @classmethod
    def from_vllm_config(
        cls, config: VllmConfig, *, disable_frontend_multiprocessing: bool = False
    ) -> AsyncLLM:
        """Start an engine core for `config`, in a process of its own unless that is disabled."""
        engine = cls(config, launch_core(config, in_process=disable_frontend_multiprocessing))
        log_ready(config, engine.ready)
        return engine

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Resolve the options and start; raises UsageError."""
        return cls.from_vllm_config(engine_args.create_engine_config("server"))

    @property
    def ready(self) -> CoreReady:
        return self._core.ready

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise UsageError("there is no tokenizer: drop --skip-tokenizer-init to have one")
        return self._tokenizer

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    @property
    def registry(self) -> CollectorRegistry | None:
        return self._metrics.registry

    @property
    def errored(self) -> bool:
        return self._core.is_dead()

    @property
    def dead_error(self) -> BaseException:
        with contextlib.suppress(EngineDeadError):
            self._core.check_alive()
        return self._core.dead_error or EngineDeadError("The engine is alive")

    @property
    def is_running(self) -> bool:
        return not self.errored and not self._is_draining

    @property
    def num_unfinished_elsewhere(self) -> int:
        return self._admission.num_unfinished_elsewhere

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    def get_default_sampling_params(self) -> dict[str, Any]:
        return self.config.sampling_defaults

    async def prepare(self, params: SamplingParams) -> None:
        if params.bad_words and params.bad_words_token_ids is None:
            words = params.bad_words
            # Once for all prompts, off the event loop.
            params.bad_words_token_ids = await asyncio.to_thread(self._inputs.bad_word_ids, words)
        if params.structured_outputs is not None:
            processed = self._inputs.process_constraint(params)
            # In canonical form, for all prompts.
            params.structured_outputs = processed.structured_outputs
            await self._prepare(processed)

    def generate(
        self,
        prompt: Prompt,
        params: Task,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        origin: Origin = NOBODY,
        is_part: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        self._core.check_alive()
        if self._is_draining:
            raise UnavailableError("The server is shutting down and takes no new requests")
        check_priority(priority)
        processed = self._inputs.process(prompt, params, cache_salt)
        processed.origin = origin
        admission = self._admission
        place = admission.place(processed) if is_part else admission.admit(processed)
        stream = self._stream(processed, request_id, priority, time.monotonic(), place)
        return cast("AsyncIterator[RequestOutput]", stream)

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
        stream = self.generate(
            prompt,
            pooling_params,
            request_id,
            priority=priority,
            cache_salt=cache_salt,
            origin=origin,
        )
        return cast("AsyncIterator[Any]", stream)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        ids = (request_id,) if isinstance(request_id, str) else request_id
        self._finish(self._outputs.abort(ids))

    async def check_health(self) -> None:
        self._attached.check_alive()

    async def reset_prefix_cache(self) -> bool:
        return await self._attached.call(ResetPrefixCache())

    async def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        await self._attached.call(Pause(mode, clear_cache))

    async def resume_generation(self) -> None:
        await self._attached.call(Resume())

    async def is_paused(self) -> bool:
        return await self._attached.call(IsPaused())

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        released = memory_to_release(self.config, level, mode)
        await self._attached.call(Pause(mode, clear_cache=True, releases=released))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self._attached.call(WakeUp(memory_to_wake(tags)))

    async def is_sleeping(self) -> bool:
        return (await self.get_stats()).is_asleep

    async def get_stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        return await self._attached.call(GetStats())

    async def snapshot(self) -> EngineSnapshot:
        taken = await self._attached.call(GetSnapshot())
        taken.start = self.ready.timeline
        return taken

    async def do_log_stats(self) -> None:
        """Print the throughput line now."""
        self._metrics.log()

    async def shutdown(self, timeout: float = 0.0) -> None:
        """Take no more requests, let running ones finish for `timeout` seconds, then stop.

        Unfinished requests get a last output with finish_reason "abort".
        """
        self._is_draining = True
        if timeout > 0 and not self.errored and self._outputs.has_unfinished_requests():
            self._idle = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout)
        self._finish(self._outputs.abort_all())
        for task in self._tasks:
            task.cancel()
        await self._core.shutdown()
        await asyncio.to_thread(self._outputs.tracer.close)

    async def _stream(
        self,
        processed: ProcessedInput,
        request_id: str,
        priority: int,
        arrival_time: float,
        place: Place,
    ) -> AsyncIterator[AnyOutput]:
        core = self._attached
        params = processed.params
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            await self._prepare(params)
        place.leave()
        # Callers may repeat an id; the core may not see one twice.
        core_id = f"{request_id}-{uuid.uuid4().hex[:8]}"
        sequences = fan_out(core_id, processed, arrival_time, priority)
        core.add_requests(sequences)
        collector = OutputCollector(is_delta=params.output_kind is RequestOutputKind.DELTA)
        state = self._outputs.add_request(
            request_id, processed, [s.request_id for s in sequences], arrival_time, collector
        )
        self._count_waiting()
        try:
            finished = False
            while not finished:
                output = await collector.get()
                finished = output.finished
                if finished:
                    _raise_failure(state)
                yield output
        finally:
            if not state.is_finished:
                self._finish(self._outputs.abort_states([state], show=False))

    async def _prepare(self, params: SamplingParams) -> None:
        """prepare() for processed parameters."""
        for name, asked in self._prepared.unknown([params]).items():
            self._prepared.learn(name, await self._attached.call(Prepare(asked)))

    @property
    def _attached(self) -> AsyncMPClient:
        """The core, attached to the running event loop."""
        if not self._tasks:
            self._core.attach()
            self._tasks = [
                asyncio.create_task(self._hand_out(), name="engine-outputs"),
                asyncio.create_task(self._metrics.log_regularly(), name="engine-stats"),
            ]
        return self._core

    async def _hand_out(self) -> None:
        """Distribute every step's outputs until the engine dies."""
        try:
            while True:
                for step in await self._core.get_outputs():
                    for outputs in in_turns(step.outputs):
                        self._finish(self._outputs.process(outputs), step.stats)
                        if outputs is not step.outputs:
                            await asyncio.sleep(0)
                # Readers come before the next step's outputs.
                await asyncio.sleep(0)
        except EngineDeadError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("The output handler failed")
            self._core.kill(f"the output handler failed: {type(error).__name__}")
            self._fail(self.dead_error)

    def _fail(self, error: BaseException) -> None:
        self._outputs.fail_all(error)
        self._wake_drain()

    def _finish(self, processed: ProcessedStep, stats: SchedulerStats | None = None) -> None:
        self._metrics.record(stats, processed.stats)
        self._count_waiting()
        if processed.aborted_ids:
            self._core.abort_requests(processed.aborted_ids)
        self._wake_drain()

    def _count_waiting(self) -> None:
        self._admission.update(self._outputs.num_unfinished, self._outputs.num_waiting_tokens)

    def _wake_drain(self) -> None:
        if self._idle is not None and not self._outputs.has_unfinished_requests():
            self._idle.set()


def _raise_failure(state: RequestState) -> None:
    for choice in state.choices:
        if choice.finish_reason == "error":
            cause = str(choice.stop_reason or "unknown cause")
            if choice.is_refused:
                raise RequestError(cause)
            raise EngineGenerateError(f"Request {state.request_id} failed: {cause}")
