"""An engine core in a child process, as its parent sees it; the child runs engine/core/__main__."""

from __future__ import annotations

import os
import resource
import shutil
import weakref
from pathlib import Path

import msgspec

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.lifeline import ChildProcess

# Files that an engine's processes open before the first client comes, and that many clients take.
_FEWEST_FILES, _ENOUGH_FILES = 96, 65535


class CoreProcess(StartedCore):
    """An engine core in a child process, which starts to import at once."""

    def __init__(self, num_front_ends: int = 1) -> None:
        super().__init__(num_front_ends)
        environment = envs.module_environment()
        # Waiting OpenMP threads sleep: on a crowded machine spinning ones starve the rest.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        environment.setdefault("GOMP_SPINCOUNT", "1000")
        self._child = ChildProcess(
            "vllm_lite.engine.core",
            [str(self.directory), str(self.heartbeat.fd), str(os.getpid()), str(num_front_ends)],
            pass_fds=(self.heartbeat.fd,),
            environment=environment,
            exit_writer=self._exit_writer,
        )
        if self._child.process is None:
            self.close()
            raise EngineDeadError(f"The engine core could not be started: {self._child.error}")
        self._process = self._child.process
        self._finalizer = weakref.finalize(self, _clean_up, self._child, self.directory)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, config: VllmConfig) -> None:
        # A core that waits for a GPU or for ranks may use no processor meanwhile.
        self.computes_itself = config.device == "cpu" and not config.parallel.has_ranks
        self.watched_pid = self.pid
        self._child.give(msgspec.msgpack.encode(config))

    def kill(self) -> None:
        self._child.kill()
        self._child.ended.wait()

    def exit_cause(self) -> str:
        return self._child.exit_cause()


def _clean_up(child: ChildProcess, directory: Path) -> None:
    """Clean up after a handle that was not stopped, at exit or when it is collected."""
    child.kill()
    shutil.rmtree(directory, ignore_errors=True)


def launch_core(
    config: VllmConfig,
    *,
    in_process: bool = False,
    num_front_ends: int = 1,
) -> StartedCore:
    """Start an engine core in a child process, or in a thread of this one, and return at once.

    Only a child can have several front ends. Raises UsageError where too few files may be opened.
    """
    _allow_open_files()
    if in_process:
        # Imported here: it needs modules of the engine core that only a core's process has.
        from vllm_lite.engine.link.inproc_client import CoreThread

        handle: StartedCore = CoreThread()
    else:
        handle = CoreProcess(num_front_ends)
    handle.start(config)
    return handle


def _allow_open_files() -> None:
    """Raise the limit of open files as far as this user may."""
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
