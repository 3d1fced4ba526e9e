"""One worker in the calling process, in the calling thread or in one of its own.

In its own thread, steps run while the caller plans the next. That thread also constructs the
worker: torch keeps settings by thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, ModelRunnerOutput, SchedulerOutput
from vllm_lite.executor.executor import Answer, Args, Executor
from vllm_lite.worker.gpu_worker import GpuWorker
from vllm_lite.worker.interface import StepWorker
from vllm_lite.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class FutureOutput:
    """The answer to a step that another thread runs."""

    future: Future[PendingOutput]

    def get(self) -> ModelRunnerOutput:
        """Wait for the step. Raises what it raised."""
        return self.future.result().get()


class UniprocExecutor(Executor):
    """Runs steps, in order, on a worker of its own."""

    def __init__(
        self,
        config: VllmConfig,
        make_worker: Callable[[VllmConfig], StepWorker] = Worker,
        *,
        in_thread: bool = False,
    ) -> None:
        self.max_in_flight = 2 if config.scheduler.async_scheduling else 1
        # Whoever makes them is not for other threads.
        self.asks_for_masks = self.max_in_flight > 1 and not in_thread
        self._thread = ThreadPoolExecutor(1, "worker") if in_thread else None
        self._worker: StepWorker | None = (
            self._thread.submit(make_worker, config).result()
            if self._thread
            else make_worker(config)
        )

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Run a step, or queue it."""
        if self._thread is not None:
            return FutureOutput(self._thread.submit(self._running.submit, step))
        return self._running.submit(step, masks)

    def call(self, method: Callable[[StepWorker, *Args], Answer], *args: *Args) -> list[Answer]:
        """Call a method of the worker."""
        own: Callable[..., Answer] = getattr(self._running, method.__name__)
        return [own(*args) if self._thread is None else self._thread.submit(own, *args).result()]

    def shutdown(self) -> None:
        """Let a running step end, then release the model and its cache."""
        self._worker = None
        if self._thread is not None:
            self._thread.shutdown()

    @property
    def _running(self) -> StepWorker:
        if self._worker is None:
            raise RuntimeError("the executor was shut down")
        return self._worker


def make_executor(config: VllmConfig) -> UniprocExecutor:
    """The executor for the device of `config`."""
    if config.device == "cuda":
        # Its steps are launched without waiting: a thread would only pass them on.
        return UniprocExecutor(config, GpuWorker)
    return UniprocExecutor(config, in_thread=config.scheduler.async_scheduling)
