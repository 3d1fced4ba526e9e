"""Starts an engine core, in whichever place is asked for."""

from __future__ import annotations

import resource

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.engine.link.core_process import CoreProcess
from vllm_lite.errors import UsageError

# What the processes of an engine hold before the first client comes, and what many clients take.
_FEWEST_FILES, _ENOUGH_FILES = 96, 65535


def launch_core(
    config: VllmConfig,
    *,
    in_process: bool = False,
    num_front_ends: int = 1,
) -> StartedCore:
    """Start an engine core and return at once; `wait_ready` is the caller's, when it likes.

    The core imports and loads meanwhile, in a child process, or in a thread of this one. Only a
    child can have more than one front end. Raises UsageError where too few files may be opened.
    """
    _allow_open_files()
    if in_process:
        # Imported only where torch is wanted in this process.
        from vllm_lite.engine.link.core_thread import CoreThread
        from vllm_lite.executor.select import make_executor

        handle: StartedCore = CoreThread(make_executor)
    else:
        handle = CoreProcess(num_front_ends)
    handle.start(config)
    return handle


def _allow_open_files() -> None:
    """Raise the limit that connections count against, as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(_ENOUGH_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < _FEWEST_FILES:
        raise UsageError(
            f"This process may open only {soft} files, an engine needs {_FEWEST_FILES} and more "
            "for its clients; raise the limit (ulimit -n)"
        )
