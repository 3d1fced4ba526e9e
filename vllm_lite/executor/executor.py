"""The interface between the engine core and whatever runs its steps: one process or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.errors import VLLMLiteError
from vllm_lite.executor.commands import (
    Command,
    Describe,
    GetAvailableMemory,
    GetKVCacheSpec,
    InitializeCache,
)


class Executor(ABC):
    """Runs steps. Built from a VllmConfig, with the model loaded when the constructor returns."""

    # Steps that may be in flight.
    max_in_flight = 1
    # Readable once a worker has ended by itself; None where none can.
    failure_fd: int | None = None
    # The error that ended it.
    failure: VLLMLiteError | None = None

    @abstractmethod
    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Run a step after those submitted before it; may return before it is done.

        A later step may rest on tokens that an earlier one, still running, samples. Answers are
        taken in the order of the steps.
        """

    @abstractmethod
    def call(self, command: Command) -> list[Any]:
        """Carry out `command` on every worker, after earlier steps; returns their answers."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release memory, threads and processes; no call follows."""

    def check_health(self) -> None:
        """Raise the error of a worker that has ended by itself."""
        if self.failure is not None:
            raise self.failure

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of one worker's cache; all workers hold equal parts of the model."""
        spec: KVCacheSpec = self.call(GetKVCacheSpec())[0]
        return spec

    def available_memory(self) -> int:
        """Bytes for a worker's KV cache: the least of all workers."""
        numbers: list[int] = self.call(GetAvailableMemory())
        return min(numbers)

    def initialize_cache(self, plan: KVCachePlan) -> float:
        """Allocate the cache of each worker; comes before the first step.

        Returns the processor seconds that the largest step should take, 0 where that is not known.
        """
        seconds: list[float] = self.call(InitializeCache(plan))
        return max(seconds)

    def describe(self) -> str:
        """One line for the log: kernels, device, threads; of several workers the first's."""
        lines: list[str] = self.call(Describe())
        return lines[0] if len(lines) == 1 else f"{len(lines)} ranks, each {lines[0]}"
