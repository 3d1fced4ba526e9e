"""The interface between the engine core and whatever runs its steps: one process or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, SchedulerOutput
from vllm_lite.errors import VLLMLiteError
from vllm_lite.worker.interface import StepWorker

Args = TypeVarTuple("Args")
Answer = TypeVar("Answer")


class Executor(ABC):
    """Runs steps. Built from a VllmConfig, with the model loaded when the constructor returns."""

    # Steps that may be in flight.
    max_in_flight = 1
    # Whether a step can get its masks while its forward pass is under way.
    asks_for_masks = False
    # Readable once a worker has ended by itself; None where none can.
    failure_fd: int | None = None
    # The error that ended it.
    failure: VLLMLiteError | None = None

    @abstractmethod
    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Run a step after those submitted before it; may return before it is done.

        `masks`, where the executor asks for them, take the place of the step's own. A later step
        may rest on tokens that an earlier one, still running, samples. Answers are taken in the
        order of the steps.
        """

    @abstractmethod
    def call(self, method: Callable[[StepWorker, *Args], Answer], *args: *Args) -> list[Answer]:
        """Call a method of every worker, after earlier steps; returns their answers."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release memory, threads and processes; no call follows."""

    def check_health(self) -> None:
        """Raise the error of a worker that has ended by itself."""
        if self.failure is not None:
            raise self.failure

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of one worker's cache; all workers hold equal parts of the model."""
        return self.call(StepWorker.kv_cache_spec)[0]

    def available_memory(self) -> int:
        """Bytes for a worker's KV cache: the least of all workers."""
        return min(self.call(StepWorker.available_memory))

    def initialize_cache(self, plan: KVCachePlan) -> float:
        """Allocate the cache of each worker; comes before the first step.

        Returns the processor seconds that the largest step should take, 0 where that is not known.
        """
        return max(self.call(StepWorker.initialize_cache, plan))

    def describe(self) -> str:
        """One line for the log: kernels, device, threads; of several workers the first's."""
        lines = self.call(StepWorker.describe)
        return lines[0] if len(lines) == 1 else f"{len(lines)} ranks, each {lines[0]}"
