"""The front end's hold on an engine core: start it, know when it ends and why, end it.

`CoreProcess` is the real thing; core_thread has the same core inside this process. Both speak
through a Channel and stamp a Heartbeat, so whoever holds one cannot tell the difference.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

import msgspec

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.channel import Channel
from vllm_lite.engine.heartbeat import Heartbeat
from vllm_lite.engine.messages import CoreFailed, CoreReady, Shutdown
from vllm_lite.errors import CheckpointError, EngineDeadError, UsageError, VLLMLiteError

# The sun_path of a unix-domain socket holds 108 bytes, the file's name included.
MAX_DIRECTORY_LENGTH = 90
# Seconds that messages of a core that has ended may still take to arrive.
LAST_WORDS_TIMEOUT = 0.2
_USER_ERRORS: dict[str, type[VLLMLiteError]] = {
    error.__name__: error for error in (UsageError, CheckpointError)
}


class CoreHandle:
    """What both kinds share: the channel, the heartbeat, the start, the last words."""

    def __init__(self) -> None:
        self._directory = _private_directory()
        self.channel = Channel.for_front_end(self._directory)
        self.heartbeat = Heartbeat.create()
        # Readable (end of file) once the core has ended.
        self.exit_fd, self._exit_writer = os.pipe()

    def start(self, config: VllmConfig) -> None:
        """Tell the core what to be; it begins to build itself."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the core now, whatever it does."""
        raise NotImplementedError

    def exit_cause(self) -> str:
        """How the core ended, once it has."""
        raise NotImplementedError

    def wait_ended(self, timeout: float) -> bool:
        """Whether the core ends within `timeout` seconds."""
        raise NotImplementedError

    def wait_ready(self) -> CoreReady:
        """Wait until the core takes requests.

        Raises the core's own UsageError or CheckpointError, or EngineDeadError where it ended
        otherwise or is not ready within VLLM_ENGINE_READY_TIMEOUT_S.
        """
        try:
            ready = self._wait_first_message()
        except BaseException:
            self.kill()
            self.close()
            raise
        # Both directions are connected: nobody needs the names of the sockets any more.
        shutil.rmtree(self._directory, ignore_errors=True)
        return ready

    def last_words(self) -> str:
        """The cause of the end: the core's own last message, else how it ended."""
        while self.channel.wait(LAST_WORDS_TIMEOUT):
            message = self.channel.receive()
            if isinstance(message, CoreFailed):
                return f"{message.kind}: {message.message}"
        return self.exit_cause()

    def stop(self, timeout: float) -> None:
        """Ask the core to end after the step in hand; kill it after `timeout` seconds."""
        self.channel.send(Shutdown())
        if not self.wait_ended(timeout):
            self.kill()
        self.close()

    def close(self) -> None:
        """Give back what this side holds; the core must have ended."""
        self.channel.close()
        self.heartbeat.close()
        os.close(self.exit_fd)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_first_message(self) -> CoreReady:
        limit = envs.VLLM_ENGINE_READY_TIMEOUT_S
        has_message = self.channel.wait(limit, other_fd=self.exit_fd)
        if not has_message and not self.wait_ended(0):
            raise EngineDeadError(
                f"The engine core was not ready within {limit} s; raise "
                "VLLM_ENGINE_READY_TIMEOUT_S if the model is just slow to load"
            )
        if not has_message and not self.channel.wait(LAST_WORDS_TIMEOUT):
            raise EngineDeadError(f"The engine core ended while starting: {self.exit_cause()}")
        message = self.channel.receive()
        if isinstance(message, CoreReady) and self.channel.wait_connected(limit):
            return message
        if isinstance(message, CoreFailed):
            if message.kind in _USER_ERRORS:
                raise _USER_ERRORS[message.kind](message.message)
            raise EngineDeadError(
                f"The engine core failed to start: {message.kind}: {message.message}"
            )
        raise EngineDeadError("The engine core did not connect")


class _Child:
    """The process and the thread that spawned it, waits for it and tells of its end.

    The kernel sends the death signal when the spawning thread ends, so that thread stays.
    """

    def __init__(self, directory: Path, heartbeat_fd: int, exit_writer: int) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.error: OSError | None = None
        self.ended = threading.Event()
        self._exit_writer = exit_writer
        self._spawned = threading.Event()
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
                env=_child_environment(),
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

    def __init__(self) -> None:
        super().__init__()
        self._child = _Child(self._directory, self.heartbeat.fd, self._exit_writer)
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


def announce_exit(writer: int) -> None:
    """Make the other end of the pipe readable; nobody may be there any more."""
    with contextlib.suppress(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)


def launch_core(config: VllmConfig, *, in_process: bool = False) -> CoreHandle:
    """Start an engine core and return at once; `wait_ready` is the caller's, when it likes.

    The core imports and loads meanwhile, in a child process, or in a thread of this one.
    """
    if in_process:
        # Imported only where torch is wanted in this process.
        from vllm_lite.engine.core_thread import CoreThread
        from vllm_lite.executor.uniproc import UniprocExecutor

        handle: CoreHandle = CoreThread(UniprocExecutor)
    else:
        handle = CoreProcess()
    handle.start(config)
    return handle


def _private_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="vllm-lite-"))
    if len(str(directory)) > MAX_DIRECTORY_LENGTH:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="vllm-lite-", dir="/tmp"))
    return directory


def _child_environment() -> dict[str, str]:
    environment = envs.child_environment()
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
