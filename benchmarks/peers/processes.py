"""Processes that are measured: started, watched, timed out, and ended with all their children.

Every one leads a session of its own, so that nothing of it outlives its turn. Figures of a
process are those of its whole tree, read from /proc.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_STOP_SECONDS = 15.0


class Process:
    """A command that runs; what it says on stderr, and on stdout unless read, is in a log."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], log: IO[bytes], *, reads: bool
    ) -> None:
        self._log = log
        self._child = subprocess.Popen(
            list(words),
            env={**os.environ, **environment},
            cwd="/",
            stdout=subprocess.PIPE if reads else log,
            stderr=log,
            start_new_session=True,
        )
        self.pid = self._child.pid

    def lines(self) -> Iterator[str]:
        """Its output, line by line, to the end."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            yield line.decode(errors="replace").rstrip("\n")

    def exit_code(self) -> int | None:
        """None while it runs; negative where a signal ended it."""
        return self._child.poll()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._child.wait()

    def last_words(self) -> str:
        """The last line of its log that says something."""
        self._log.flush()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        said = [line for line in lines if line]
        errors = [line for line in said if "Error" in line]
        return (errors or said or ["it said nothing"])[-1][-300:]

    def stop(self) -> None:
        """End it and all it has started, gently at first."""
        family = [self.pid, *descendants(self.pid)]
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_STOP_SECONDS)
        self.kill()
        # Who left the session is ended one by one.
        for pid in family[1:]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()

    def kill(self) -> None:
        """End its session at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def running(
    words: Sequence[str], environment: Mapping[str, str], *, reads: bool
) -> Iterator[Process]:
    """A process for as long as the context is open."""
    with tempfile.TemporaryFile() as log:
        process = Process(words, environment, log, reads=reads)
        try:
            yield process
        finally:
            process.stop()


def run_child(
    words: Sequence[str],
    environment: Mapping[str, str],
    limit: float,
    on_line: Callable[[str], None],
) -> str:
    """Run a command to its end and give each line that it prints; why it failed, or ""."""
    with running(words, environment, reads=True) as process:
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(limit, end)
        timer.start()
        try:
            for line in process.lines():
                on_line(line)
            code = process.wait()
        finally:
            timer.cancel()
        if is_late.is_set():
            return f"not done within {limit:.0f} s"
        return f"ended with code {code}: {process.last_words()}" if code else ""


def descendants(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process and its descendants; a page that several share counts once."""
    total = 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def cpu_share(pid: int, seconds: float) -> float:
    """The share of one core that a process and its descendants take over so many seconds."""
    before, begin = _cpu_ticks(pid), time.monotonic()
    time.sleep(seconds)
    ticks = _cpu_ticks(pid) - before
    return ticks / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begin)


def _cpu_ticks(pid: int) -> int:
    stats = [_stat(one) for one in (pid, *descendants(pid))]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
