"""An engine core in a child process, as its parent sees it.

The child's own side is core_process. Its end shows on `exit_fd`, whatever the cause.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import site
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import msgspec

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.core_handle import CoreHandle, announce_exit
from vllm_lite.errors import EngineDeadError


class _Child:
    """The process and the thread that spawned it, waits for it and tells of its end.

    The kernel sends the death signal when the spawning thread ends, so that thread stays.
    """

    def __init__(
        self,
        directory: Path,
        heartbeat_fd: int,
        exit_writer: int,
        log_config_file: str | None = None,
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.error: OSError | None = None
        self.ended = threading.Event()
        self._exit_writer = exit_writer
        self._spawned = threading.Event()
        self._environment = _child_environment(log_config_file)
        arguments = [str(directory), str(heartbeat_fd), str(os.getpid())]
        command = [sys.executable, "-P", "-m", "vllm_lite.engine.core_process", *arguments]
        threading.Thread(
            target=self._run, args=(command, heartbeat_fd), name="engine-core-watch", daemon=True
        ).start()
        self._spawned.wait()

    def kill(self) -> None:
        """SIGKILL; harmless where it has ended."""
        if self.process is not None:
            self.process.kill()

    def _run(self, command: list[str], heartbeat_fd: int) -> None:
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                # What it prints belongs to the log; standard output is the user's.
                stdout=2,
                pass_fds=(heartbeat_fd,),
                # A terminal's Ctrl-C is for the parent, which drains and then stops its child.
                process_group=0,
                env=self._environment,
            )
        except OSError as error:
            self.error = error
        self._spawned.set()
        if self.process is not None:
            self.process.wait()
        self.ended.set()
        announce_exit(self._exit_writer)


class CoreProcess(CoreHandle):
    """An engine core in a child process, which starts to import at once."""

    def __init__(self, log_config_file: str | None = None) -> None:
        super().__init__()
        self._child = _Child(self._directory, self.heartbeat.fd, self._exit_writer, log_config_file)
        if self._child.process is None:
            self.close()
            raise EngineDeadError(f"The engine core could not be started: {self._child.error}")
        self._process = self._child.process
        self._finalizer = weakref.finalize(self, _clean_up, self._child, self._directory)

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    def start(self, config: VllmConfig) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        # A child that is gone already shows at the next wait.
        with contextlib.suppress(BrokenPipeError), stdin:
            stdin.write(msgspec.msgpack.encode(config))

    def kill(self) -> None:
        self._child.kill()
        self._child.ended.wait()

    def exit_cause(self) -> str:
        code = self._process.returncode
        if code is None:
            return "it does not answer"
        if code >= 0:
            return f"the process ended with exit code {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        return f"the process was killed by {signal.Signals(-code).name}{hint}"

    def wait_ended(self, timeout: float) -> bool:
        return self._child.ended.wait(timeout)


def _child_environment(log_config_file: str | None) -> dict[str, str]:
    environment = envs.child_environment()
    if log_config_file is not None:
        environment["VLLM_LOGGING_CONFIG_PATH"] = os.path.abspath(log_config_file)
    # Waiting OpenMP threads sleep: on a crowded machine spinning ones starve the rest.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.setdefault("GOMP_SPINCOUNT", "1000")
    # -P keeps the current directory off the child's path; the package itself must stay on it.
    root = str(Path(__file__).resolve().parents[2])
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{inherited}" if inherited else root
    return environment


def _clean_up(child: _Child, directory: Path) -> None:
    """For a handle that nobody stopped: at interpreter exit, or when it is collected."""
    child.kill()
    shutil.rmtree(directory, ignore_errors=True)
