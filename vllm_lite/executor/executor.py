"""What the engine core needs of whatever runs its steps: one process, several, or a script."""

from __future__ import annotations

from typing import Protocol

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import SchedulerOutput


class Executor(Protocol):
    """Runs steps. Built from a VllmConfig, with the model loaded when the constructor returns."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""
        ...

    def available_memory(self) -> int:
        """Bytes that the KV cache may take."""
        ...

    def initialize_cache(self, plan: KVCachePlan) -> None:
        """Allocate the cache; comes before the first step."""
        ...

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Run a step after those submitted before it; may return before it is done.

        A later step may rest on tokens that an earlier one, still running, samples. Answers are
        taken in the order of the steps.
        """
        ...

    def describe(self) -> str:
        """One line for the log: kernels, device, threads."""
        ...

    def shutdown(self) -> None:
        """Release memory and threads; no call follows."""
        ...
