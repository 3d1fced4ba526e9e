"""The interface between an executor and its workers, on any device."""

from __future__ import annotations

from typing import Protocol

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import SchedulerOutput


class StepWorker(Protocol):
    """Built with the model loaded; then the calls come in this order, steps without end."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""
        ...

    def available_memory(self) -> int:
        """Bytes for the KV cache."""
        ...

    def initialize_cache(self, plan: KVCachePlan) -> float:
        """Allocate the cache and make ready to run.

        Returns the processor seconds that the largest step should take, 0 where that is not known.
        """
        ...

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Run a step after those submitted before it."""
        ...

    def release_cache(self) -> int:
        """Give the memory of the cache back, whose contents are lost; its bytes.

        The cache stays where it is: steps may follow, and take memory anew.
        """
        ...

    def describe(self) -> str:
        """One line for the log."""
        ...
