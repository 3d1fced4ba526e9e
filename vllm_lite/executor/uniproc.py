"""One worker in the calling process."""

from __future__ import annotations

from collections.abc import Callable

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.worker.interface import StepWorker
from vllm_lite.worker.worker import Worker


class UniprocExecutor:
    """Runs steps on a worker of its own."""

    def __init__(
        self, config: VllmConfig, make_worker: Callable[[VllmConfig], StepWorker] = Worker
    ) -> None:
        self._worker: StepWorker | None = make_worker(config)

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""
        return self._running.kv_cache_spec()

    def available_memory(self) -> int:
        """Bytes that the KV cache may take."""
        return self._running.available_memory()

    def initialize_cache(self, plan: KVCachePlan) -> None:
        """Allocate the cache; comes before the first step."""
        self._running.initialize_cache(plan)

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Run a step."""
        return self._running.submit(step)

    def describe(self) -> str:
        """One line for the log: kernels, device, threads."""
        return self._running.describe()

    def shutdown(self) -> None:
        """Release the model and its cache."""
        self._worker = None

    @property
    def _running(self) -> StepWorker:
        if self._worker is None:
            raise RuntimeError("the executor was shut down")
        return self._worker
