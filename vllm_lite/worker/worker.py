"""One device's worker: loads the model, says what memory is left, holds the cache, runs steps.

Knows nothing of scheduling. Order of calls: construct, available_memory, initialize_cache,
then submit.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial

import torch

from vllm_lite import platform
from vllm_lite.config.cache import cpu_cache_bytes
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, SchedulerOutput
from vllm_lite.distributed.groups import tp_size
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.cpu.mapped_memory import Allocations, release_pages, return_unused_heap
from vllm_lite.loader.load import save_sharded_state
from vllm_lite.quantization.storage import describe_weights, stored_weights
from vllm_lite.worker.batch import HostInputs, eager
from vllm_lite.worker.block_table import BlockTables, block_tables
from vllm_lite.worker.drafting.drafters import (
    Models,
    load_models,
    make_step_drafter,
    target_forward,
)
from vllm_lite.worker.interface import MemoryTag
from vllm_lite.worker.kv_cache import allocate_kv_cache, allocate_states
from vllm_lite.worker.model_runner import ModelRunner
from vllm_lite.worker.profile import activation_bytes
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.trial_steps import check_answer, sample_steps, timed_step


def host_runner(
    config: VllmConfig, plan: KVCachePlan, models: Models, device: torch.device
) -> ModelRunner:
    """Steps whose inputs are made on the host, layer by layer or as one recorded call."""
    tables = block_tables(config, plan, BlockTables)
    states = RequestStates(config, tables, has_states=plan.num_states > 0)
    inputs, record = HostInputs(states, device), None
    if not config.model.enforce_eager:
        # Imported here: a machine with a GPU need not have the compiled module.
        from vllm_lite.worker.recorded_forward import recorded_forward

        # The same operations on the same numbers.
        record = partial(recorded_forward, num_groups=len(plan.groups))
    drafter = make_step_drafter(config, models, states, device, record)
    forward = eager(inputs, target_forward(config, models, drafter, record))
    return ModelRunner(config, models.target, inputs, forward, device, drafter)


class Worker:
    """The model on one device, with its cache."""

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._runner: ModelRunner | None = None
        # A tensor in each of the cache's mappings: one of the pages, one of the states.
        self._cache_memory: list[torch.Tensor] = []
        self._start_kernels(config.device, platform.num_compute_threads(tp_size()))
        # Of the model, and of the one that drafts.
        self._weights = Allocations(), Allocations()
        self._models = load_models(config, config.device, self._weights)

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""
        return self._models.kv_cache_spec()

    def available_memory(self) -> int:
        """Bytes for the KV cache, once the weights are in memory.

        VLLM_CPU_KVCACHE_SPACE where it is set, else the utilisation's share of what is free,
        of which ranks have equal parts, less what a step needs for itself.
        """
        space = cpu_cache_bytes()
        if space is not None:
            return space
        share = self._config.cache.gpu_memory_utilization * platform.free_memory()
        return max(0, int(share / tp_size()) - activation_bytes(self._config))

    def initialize_cache(self, plan: KVCachePlan) -> float:
        """Allocate the cache and make ready to run; raises CheckpointError for unsound weights.

        Returns the processor seconds that the largest step should take, from a small one's.
        """
        device = torch.device(self._config.device)
        caches, states = allocate_kv_cache(plan, device), allocate_states(plan, device)
        self._models.bind_kv_cache(caches, states)
        self._cache_memory = [*(cache.key for cache in caches[:1]), *(s[0] for s in states[:1])]
        runner = host_runner(self._config, plan, self._models, device)
        for step in sample_steps(self._config, plan.num_blocks, len(plan.groups)):
            check_answer(self._config, runner.submit(step).get())
        self._runner = runner
        steps, times = timed_step(self._config, len(plan.groups))
        before = time.process_time()
        for step in steps:
            runner.submit(step).get()
        return (time.process_time() - before) * times

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Run one step."""
        if self._runner is None:
            raise RuntimeError("initialize_cache comes before submit")
        return self._runner.submit(step, masks)

    def release(self, tags: Collection[MemoryTag]) -> int:
        """Give the memory of `tags` back, whose contents are lost; its bytes."""
        num_bytes = sum(own.release() for own in self._weights) if "weights" in tags else 0
        return num_bytes + sum(map(release_pages, self._cache_memory if "kv_cache" in tags else ()))

    def refill_weights(self) -> None:
        """Read the weights into their memory again."""
        load_models(self._config, self._config.device, self._weights)
        return_unused_heap()

    def save_sharded_state(self, directory: str, pattern: str, max_size: int) -> str:
        """Write this rank's part of the weights to files; why that failed, or ""."""
        return save_sharded_state(self._config, directory, pattern, max_size)

    def describe(self) -> str:
        """For the log: device, number type, kernels, threads, weights and the time to read them."""
        chosen = f"{self._config.device}, {self._config.model.dtype}, kernels {dispatch.describe()}"
        stored = describe_weights(stored_weights(self._models.target))
        return f"{chosen}; {stored}"

    def _start_kernels(self, device: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        config = self._config
        dispatch.select_ops(device, config.attention.backend, config.model.deterministic)
        dispatch.set_num_threads(num_threads)
