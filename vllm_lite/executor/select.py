"""Which executor runs a configuration."""

from __future__ import annotations

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.executor.executor import Executor


def make_executor(config: VllmConfig) -> Executor:
    """The executor for `config`, its model loaded."""
    # Each brings what it needs and no more: with ranks, this process has no use for torch.
    if config.parallel.has_ranks:
        from vllm_lite.executor.multiproc import MultiprocExecutor

        return MultiprocExecutor(config)
    from vllm_lite.executor.uniproc import UniprocExecutor

    if config.device == "cuda":
        # Its steps are given out without waiting: a thread would only pass them on.
        from vllm_lite.worker.gpu_worker import GpuWorker

        return UniprocExecutor(config, GpuWorker)
    return UniprocExecutor(config, in_thread=config.scheduler.async_scheduling)
