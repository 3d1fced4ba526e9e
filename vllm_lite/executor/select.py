"""Chooses the executor that runs a configuration."""

from __future__ import annotations

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.executor.executor import Executor
from vllm_lite.executor.multiproc import MultiprocExecutor
from vllm_lite.log import timeline


def make_executor(config: VllmConfig) -> Executor:
    """The executor for `config`, with the model loaded."""
    if config.parallel.has_ranks:
        return MultiprocExecutor(config)
    # Imported here: it brings torch, which a process with ranks has no use for.
    from vllm_lite.executor.uniproc import uniproc_executor

    timeline.mark("imports")
    return uniproc_executor(config)
