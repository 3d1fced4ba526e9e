"""An engine core in a child process, as its parent sees it.

The child's own side is engine/core/__main__.py. Its end shows on `exit_fd`, whatever the cause.
"""

from __future__ import annotations

import os
import shutil
import weakref
from pathlib import Path

import msgspec

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.errors import EngineDeadError
from vllm_lite.lifeline import ChildProcess


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
        """Of the child."""
        return self._process.pid

    def start(self, config: VllmConfig) -> None:
        # One that waits for a GPU, or for its ranks, may have no sign of what they compute.
        self.computes_itself = config.device == "cpu" and not config.parallel.has_ranks
        self.watched_pid = self.pid
        self._child.give(msgspec.msgpack.encode(config))

    def kill(self) -> None:
        self._child.kill()
        self._child.ended.wait()

    def exit_cause(self) -> str:
        return self._child.exit_cause()

    def wait_ended(self, timeout: float) -> bool:
        return self._child.ended.wait(timeout)


def _clean_up(child: ChildProcess, directory: Path) -> None:
    """For a handle that nobody stopped: at interpreter exit, or when it is collected."""
    child.kill()
    shutil.rmtree(directory, ignore_errors=True)
