"""An executor's commands to its workers, besides steps: plain data that can travel as msgpack.

A command runs itself on a worker and has the type of its answer.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.worker.interface import MemoryTag, StepWorker


class GetKVCacheSpec(msgspec.Struct, tag=True):
    """The shape of the cache that the worker's part of the model needs."""

    answer: ClassVar[Any] = KVCacheSpec

    def run(self, worker: StepWorker) -> KVCacheSpec:
        return worker.kv_cache_spec()


class GetAvailableMemory(msgspec.Struct, tag=True):
    """Bytes that its cache may take."""

    answer: ClassVar[Any] = int

    def run(self, worker: StepWorker) -> int:
        return worker.available_memory()


class InitializeCache(msgspec.Struct, tag=True):
    """Allocate the cache; the processor seconds that the largest step should take."""

    answer: ClassVar[Any] = float

    plan: KVCachePlan

    def run(self, worker: StepWorker) -> float:
        return worker.initialize_cache(self.plan)


class Describe(msgspec.Struct, tag=True):
    """One line for the log."""

    answer: ClassVar[Any] = str

    def run(self, worker: StepWorker) -> str:
        return worker.describe()


class Release(msgspec.Struct, tag=True):
    """Give the memory of `tags` back, whose contents are lost; its bytes."""

    answer: ClassVar[Any] = int

    tags: tuple[MemoryTag, ...]

    def run(self, worker: StepWorker) -> int:
        return worker.release(self.tags)


class RefillWeights(msgspec.Struct, tag=True):
    """Read released weights again into the memory that they had."""

    answer: ClassVar[Any] = type(None)

    def run(self, worker: StepWorker) -> None:
        worker.refill_weights()


class SaveShardedState(msgspec.Struct, tag=True):
    """Write the worker's part of the weights to files; why that failed, or ""."""

    answer: ClassVar[Any] = str

    directory: str
    pattern: str
    max_size: int

    def run(self, worker: StepWorker) -> str:
        return worker.save_sharded_state(self.directory, self.pattern, self.max_size)


Command = (
    GetKVCacheSpec
    | GetAvailableMemory
    | InitializeCache
    | Describe
    | Release
    | RefillWeights
    | SaveShardedState
)
