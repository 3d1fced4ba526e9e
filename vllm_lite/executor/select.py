"""Chooses the executor that runs a configuration."""

from __future__ import annotations

from importlib import import_module

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.executor.executor import Executor
from vllm_lite.log import timeline


def make_executor(config: VllmConfig) -> Executor:
    """The executor for `config`, with the model loaded."""
    # By name, because each brings much: torch for one process, the compiled module for ranks.
    kind = "multiproc" if config.parallel.has_ranks else "uniproc"
    module = import_module(f"vllm_lite.executor.{kind}")
    timeline.mark("imports")
    executor: Executor = module.make_executor(config)
    return executor
