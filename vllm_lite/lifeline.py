"""Child processes that end with their parents, and a process's signs of life.

The parent's side is ChildProcess, whose end shows on a descriptor; the child's is die_with_parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
_TICKS_PER_SECOND = 100


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit where it already has.

    The parent counts as ended with the thread that started this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def limit_memory(more: int) -> None:
    """Let this process hold `more` bytes beyond what it holds now."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            held = int(statm.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + more, held + more))


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that what has begun is cleaned up."""

    def interrupt(*_: object) -> None:
        # A shell has the processes that it runs in the background ignore SIGINT.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class ChildProcess:
    """`python -m module arguments` and the thread that spawned it and waits for it.

    The kernel sends the death signal when the spawning thread ends, so that thread stays.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        pass_fds: Sequence[int],
        environment: dict[str, str],
        exit_writer: int,
    ) -> None:
        """Starts at once; `exit_writer` is written to and closed when the child has ended."""
        self.process: subprocess.Popen[bytes] | None = None
        self.error: OSError | None = None
        self.ended = threading.Event()
        self._exit_writer = exit_writer
        self._environment = environment
        self._pass_fds = tuple(pass_fds)
        self._spawned = threading.Event()
        command = [sys.executable, "-P", "-m", module, *arguments]
        threading.Thread(
            target=self._run, args=(command,), name=f"{module}-watch", daemon=True
        ).start()
        self._spawned.wait()

    def give(self, data: bytes) -> None:
        """Write the child's standard input and close it; one that is gone shows elsewhere."""
        assert self.process is not None
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError), stdin:
            stdin.write(data)

    def kill(self) -> None:
        """SIGKILL; harmless where it has ended."""
        if self.process is not None:
            self.process.kill()

    def terminate(self) -> None:
        """SIGTERM; harmless where it has ended."""
        if self.process is not None:
            self.process.terminate()

    def exit_cause(self) -> str:
        """How the process ended, once it has."""
        code = None if self.process is None else self.process.returncode
        if code is None:
            return "it does not answer"
        if code >= 0:
            return f"the process ended with exit code {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        return f"the process was killed by {signal.Signals(-code).name}{hint}"

    def _run(self, command: list[str]) -> None:
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                # Its output belongs to the log; standard output is the user's.
                stdout=2,
                pass_fds=self._pass_fds,
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


def announce_exit(writer: int) -> None:
    """Make the other end of the pipe readable and close this one."""
    with contextlib.suppress(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)


class ProcessSign(NamedTuple):
    """A process's sign of life: the state of its main thread, its processor seconds."""

    state: str
    cpu: float


def process_sign(pid: int) -> ProcessSign | None:
    """A process's sign of life; None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name is in parentheses and may contain any character.
    state, *fields = text.rpartition(")")[2].split()
    return ProcessSign(state, (int(fields[10]) + int(fields[11])) / _TICKS_PER_SECOND)
