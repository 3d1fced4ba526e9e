"""Starts an engine core, in whichever place is asked for."""

from __future__ import annotations

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.core_child import CoreProcess
from vllm_lite.engine.core_handle import StartedCore


def launch_core(
    config: VllmConfig,
    *,
    in_process: bool = False,
    num_front_ends: int = 1,
) -> StartedCore:
    """Start an engine core and return at once; `wait_ready` is the caller's, when it likes.

    The core imports and loads meanwhile, in a child process, or in a thread of this one. Only a
    child can have more than one front end.
    """
    if in_process:
        # Imported only where torch is wanted in this process.
        from vllm_lite.engine.core_thread import CoreThread
        from vllm_lite.executor.select import make_executor

        handle: StartedCore = CoreThread(make_executor)
    else:
        handle = CoreProcess(num_front_ends)
    handle.start(config)
    return handle
