"""Which executor runs a configuration."""

from __future__ import annotations

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.executor.executor import Executor
from vllm_lite.executor.threaded import ThreadedExecutor
from vllm_lite.executor.uniproc import UniprocExecutor


def make_executor(config: VllmConfig) -> Executor:
    """The executor for `config`, its model loaded."""
    if config.device == "cuda":
        # Its steps are given out without waiting: a thread would only pass them on.
        from vllm_lite.worker.gpu_worker import GpuWorker

        return UniprocExecutor(config, GpuWorker)
    if config.scheduler.async_scheduling:
        return ThreadedExecutor(config)
    return UniprocExecutor(config)
