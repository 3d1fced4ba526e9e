"""LLMEngine: the engine for a blocking caller: add requests, step, read outputs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from vllm_lite import envs
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest, Task
from vllm_lite.engine.client import Prompt, memory_to_release, memory_to_wake
from vllm_lite.engine.front.admission import PreparedConstraints, fan_out
from vllm_lite.engine.front.input_processor import InputProcessor, ProcessedInput, check_priority
from vllm_lite.engine.front.output_processor import OutputProcessor
from vllm_lite.engine.link.core_client import SyncMPClient, log_ready
from vllm_lite.engine.link.core_process import launch_core
from vllm_lite.engine.link.messages import (
    GetStats,
    IsPaused,
    Pause,
    Prepare,
    ResetPrefixCache,
    SaveShardedState,
    WakeUp,
)
from vllm_lite.errors import EngineDeadError, RequestError, UsageError
from vllm_lite.metrics.engine_metrics import engine_metrics
from vllm_lite.metrics.stats import SchedulerStats
from vllm_lite.outputs import AnyOutput
from vllm_lite.platform import num_compute_threads
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from vllm_lite.engine.link.inproc_client import InprocClient

# Sequences that travel to the core in one message.
BATCH_SIZE = 512
# Prompts that are tokenised by threads.
_MANY_PROMPTS = 64


class _Outputs:
    """A Sink for requests that all belong to one reader."""

    def __init__(self) -> None:
        self.waiting: list[AnyOutput] = []

    def put(self, output: AnyOutput) -> None:
        self.waiting.append(output)

    def fail(self, error: BaseException) -> None:
        """The reader gets the error from the core client itself."""

    def take(self) -> list[AnyOutput]:
        taken, self.waiting = self.waiting, []
        return taken


class LLMEngine:
    """An engine driven step by step."""

    def __init__(
        self, config: VllmConfig, core: SyncMPClient | InprocClient, tokenizer: Tokenizer | None
    ) -> None:
        self.config = config
        self._core = core
        self._tokenizer = tokenizer
        self._inputs = InputProcessor(config, tokenizer)
        self._prepared = PreparedConstraints()
        self._processor = OutputProcessor(config, tokenizer)
        self._metrics = engine_metrics(config, core.ready.num_blocks)
        self._outputs = _Outputs()
        self._unsent: list[EngineCoreRequest] = []
        self._numbers = itertools.count()
        self._is_asleep = False

    @classmethod
    def from_vllm_config(cls, config: VllmConfig, *, multiprocess: bool | None = None) -> LLMEngine:
        """Start an engine; its core in a child process unless VLLM_ENABLE_V1_MULTIPROCESSING=0."""
        if multiprocess is None:
            multiprocess = envs.VLLM_ENABLE_V1_MULTIPROCESSING
        if not multiprocess:
            # Imported here: it needs modules of the engine core that only a core's process has.
            from vllm_lite.engine.link.inproc_client import InprocClient

            tokenizer = _tokenizer_of(config)
            core: SyncMPClient | InprocClient = InprocClient(config)
        else:
            handle = launch_core(config)
            try:
                # While the child imports and loads.
                tokenizer = _tokenizer_of(config)
            except BaseException:
                handle.kill()
                handle.close()
                raise
            core = SyncMPClient(handle)
        log_ready(config, core.ready)
        return cls(config, core, tokenizer)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        """Resolve the options and start; raises UsageError."""
        return cls.from_vllm_config(engine_args.create_engine_config("llm"))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; UsageError with skip_tokenizer_init."""
        if self._tokenizer is None:
            raise UsageError("there is no tokenizer: drop skip_tokenizer_init to have one")
        return self._tokenizer

    @property
    def registry(self) -> CollectorRegistry | None:
        return self._metrics.registry

    def process(
        self, prompt: Prompt, params: Task, cache_salt: str | None = None
    ) -> ProcessedInput:
        """Tokenise and check a request without adding it; raises RequestError."""
        return self._inputs.process(prompt, params, cache_salt)

    def process_all(
        self, prompts: Sequence[Prompt], params: Sequence[Task]
    ) -> list[ProcessedInput]:
        """process() for each, by threads where they are many: tokenizers let others run."""
        if len(prompts) < _MANY_PROMPTS:
            return list(map(self.process, prompts, params))
        threads = ThreadPoolExecutor(num_compute_threads())
        try:
            return list(threads.map(self.process, prompts, params))
        finally:
            threads.shutdown(cancel_futures=True)

    def prepare(self, requests: Iterable[ProcessedInput]) -> None:
        """Compile the requests' constraints side by side; raises RequestError."""
        unknown = self._prepared.unknown(request.params for request in requests)
        if unknown:
            refusals = self._core.call_all(Prepare(params) for params in unknown.values())
            for name, refusal in zip(unknown, refusals, strict=True):
                self._prepared.learn(name, refusal)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | ProcessedInput,
        params: Task | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Queue a request; raises RequestError. Callers may repeat an id."""
        check_priority(priority)
        if self._is_asleep:
            raise RequestError("the engine sleeps; call wake_up() first")
        if not isinstance(prompt, ProcessedInput):
            prompt = self.process(prompt, params or SamplingParams())
        self.prepare([prompt])
        arrival_time = time.monotonic()
        # The core may not see an id twice: outputs of an aborted request may still be on the way.
        core_id = f"{request_id}-{next(self._numbers)}"
        sequences = fan_out(core_id, prompt, arrival_time, priority)
        core_ids = [sequence.request_id for sequence in sequences]
        self._processor.add_request(request_id, prompt, core_ids, arrival_time, self._outputs)
        self._unsent += sequences
        if len(self._unsent) >= BATCH_SIZE:
            self._send()

    def step(self) -> list[AnyOutput]:
        if not self._processor.has_unfinished_requests():
            return self._outputs.take()
        self._send()
        try:
            step = self._core.get_output()
        except EngineDeadError as error:
            self._processor.fail_all(error)
            raise
        processed = self._processor.process(step.outputs)
        self._metrics.record(step.stats, processed.stats)
        if processed.aborted_ids:
            self._core.abort_requests(processed.aborted_ids)
        return self._outputs.take()

    def abort_request(self, request_ids: Iterable[str]) -> None:
        """End requests; step() gives their last output, with finish_reason "abort"."""
        self._send()
        processed = self._processor.abort(request_ids)
        self._metrics.record(None, processed.stats)
        self._core.abort_requests(processed.aborted_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to wait for."""
        return self._processor.has_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False where blocks are in use."""
        return self._core.call(ResetPrefixCache())

    def get_stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        return self._core.call(GetStats())

    def sleep(self, level: int = 1) -> None:
        """Take no requests until wake_up(); raises RequestError, also while requests run.

        Level 1 forgets the KV cache and gives its memory back to the system; level 2 that of the
        weights as well, which wake_up() reads again.
        """
        released = memory_to_release(self.config, level)
        if self.has_unfinished_requests():
            raise RequestError("requests are running; sleep once they have ended")
        self._core.call(Pause("abort", clear_cache=True, releases=released))
        self._is_asleep = True

    def wake_up(self, tags: Collection[str] | None = None) -> None:
        """Take back the memory of `tags`, by default of all; raises RequestError.

        Ends sleep() once all is back.
        """
        self._core.call(WakeUp(memory_to_wake(tags)))
        self._is_asleep = self._core.call(IsPaused())

    def save_sharded_state(self, path: str, pattern: str | None, max_size: int) -> None:
        """Write each worker's part of the weights to files in `path`; raises RequestError."""
        chosen = pattern or "model-rank-{rank}-part-{part}.safetensors"
        failure = self._core.call(SaveShardedState(path, chosen, max_size))
        if failure:
            raise RequestError(failure)

    def shutdown(self) -> None:
        """End the engine core; calling it again does nothing."""
        self._core.shutdown()
        self._processor.tracer.close()

    def _send(self) -> None:
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._core.add_requests(unsent)


def _tokenizer_of(config: VllmConfig) -> Tokenizer | None:
    return None if config.model.skip_tokenizer_init else load_tokenizer(config)
