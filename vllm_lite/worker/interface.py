"""The interface between an executor and its workers, on any device."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, SchedulerOutput

# What memory is for: each kind can be given back by itself.
MemoryTag = Literal["weights", "kv_cache"]


class StepWorker(Protocol):
    """Built with the model loaded; then the calls come in this order, steps without end."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""

    def available_memory(self) -> int:
        """Bytes for the KV cache."""

    def initialize_cache(self, plan: KVCachePlan) -> float:
        """Allocate the cache and make ready to run.

        Returns the processor seconds that the largest step should take, 0 where that is not known.
        """

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Run a step after those submitted before it; `masks` take the place of its own."""

    def release(self, tags: Collection[MemoryTag]) -> int:
        """Give the memory of `tags` back, whose contents are lost; its bytes.

        All stays where it is. Steps may follow, once weights are refilled; the cache takes memory
        anew as they use it.
        """

    def refill_weights(self) -> None:
        """Read the weights again into the memory that they had."""

    def save_sharded_state(self, directory: str, pattern: str, max_size: int) -> str:
        """Write this rank's part of the weights to files; why that failed, or ""."""

    def describe(self) -> str:
        """One line for the log."""
