"""One worker in a thread of its own: steps run there while the caller plans the next.

The thread does all of the worker's work, its construction too: torch keeps settings by thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import ModelRunnerOutput, SchedulerOutput
from vllm_lite.worker.worker import Worker

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FutureOutput:
    """The answer to a step that another thread runs."""

    future: Future[PendingOutput]

    def get(self) -> ModelRunnerOutput:
        """Wait for the step. Raises what it raised."""
        return self.future.result().get()


class ThreadedExecutor:
    """Runs steps, in order, beside the calling thread."""

    def __init__(self, config: VllmConfig) -> None:
        self._thread = ThreadPoolExecutor(1, "worker")
        self._worker: Worker | None = self._call(Worker, config)

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""
        return self._call(self._running.kv_cache_spec)

    def available_memory(self) -> int:
        """Bytes that the KV cache may take."""
        return self._call(self._running.available_memory)

    def initialize_cache(self, plan: KVCachePlan) -> None:
        """Allocate the cache; comes before the first step."""
        self._call(self._running.initialize_cache, plan)

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Queue a step."""
        return FutureOutput(self._thread.submit(self._running.submit, step))

    def describe(self) -> str:
        """One line for the log: kernels, device, threads."""
        return self._call(self._running.describe)

    def shutdown(self) -> None:
        """Let a running step end, then release the model and its cache."""
        self._worker = None
        self._thread.shutdown()

    def _call(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._thread.submit(work, *args, **kwargs).result()

    @property
    def _running(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the executor was shut down")
        return self._worker
