"""One device's worker: loads the model, says what memory is left, holds the cache, runs steps.

Knows nothing of scheduling. Order of calls: construct, available_memory, initialize_cache,
then submit.
"""

from __future__ import annotations

from typing import Protocol

import torch

from vllm_lite import envs, platform
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.errors import UsageError
from vllm_lite.kernels import dispatch
from vllm_lite.loader.load import load_model
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.quantization.storage import describe_weights, stored_weights
from vllm_lite.worker.kv_cache import allocate_kv_cache
from vllm_lite.worker.model_runner import ModelRunner
from vllm_lite.worker.profile import activation_bytes
from vllm_lite.worker.trial_steps import check_answer, sample_steps

_GIB = 1 << 30


class Runner(Protocol):
    """What runs a worker's steps."""

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Run a step after those submitted before it."""
        ...


class Worker:
    """The model on one device, with its cache."""

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._device = torch.device(config.device)
        self._runner: Runner | None = None
        num_threads = platform.num_compute_threads()
        torch.set_num_threads(num_threads)
        dispatch.select_ops(config.device, config.attention.backend, config.model.deterministic)
        dispatch.set_num_threads(num_threads)
        self._model = load_model(config, config.device)

    def kv_cache_spec(self) -> KVCacheSpec:
        """The shape of the cache that the model needs."""
        return self._model.kv_cache_spec()

    def available_memory(self) -> int:
        """Bytes for the KV cache, once the weights are in memory.

        VLLM_CPU_KVCACHE_SPACE where it is set, else the utilisation's share of what is free,
        less what a step needs for itself.
        """
        space = envs.VLLM_CPU_KVCACHE_SPACE
        if space is not None:
            if not 0 < space < 2**24:
                raise UsageError(
                    f"VLLM_CPU_KVCACHE_SPACE={space:g} is not a positive number of GiB; "
                    "set it to one or unset it"
                )
            return int(space * _GIB)
        share = self._config.cache.gpu_memory_utilization * platform.free_memory()
        return max(0, int(share) - activation_bytes(self._config))

    def initialize_cache(self, plan: KVCachePlan) -> None:
        """Allocate the cache and make ready to run; raises CheckpointError for unsound weights."""
        self._model.bind_kv_cache(allocate_kv_cache(plan, self._device))
        runner = self._make_runner(plan, self._model)
        for step in sample_steps(self._config, plan.num_blocks, len(plan.groups)):
            check_answer(self._config, runner.submit(step).get())
        self._runner = runner

    def _make_runner(self, plan: KVCachePlan, model: CausalLM) -> Runner:
        return ModelRunner(self._config, plan, model, self._device)

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Run one step."""
        if self._runner is None:
            raise RuntimeError("initialize_cache comes before submit")
        return self._runner.submit(step)

    def describe(self) -> str:
        """For the log: device, number type, kernels, threads, weights and the time to read them."""
        chosen = f"{self._device.type}, {self._config.model.dtype}, kernels {dispatch.describe()}"
        return f"{chosen}; {describe_weights(stored_weights(self._model))}"
