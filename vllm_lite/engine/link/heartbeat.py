"""16 shared bytes: the start of the engine core's current step, and how long one may take.

The core stamps; a front end reads, and stamps only when it wakes the core. The clock is
CLOCK_MONOTONIC, which all processes of a machine share. Zero means that the core is idle.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time

SIZE = 16


class Heartbeat:
    """A step's start time in memory that both processes map."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, SIZE)
        # Aligned 8-byte stores: a reader never sees half a number.
        self._stamp = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> Heartbeat:
        """New memory; hand `fd` to the process that stamps."""
        with tempfile.TemporaryFile() as file:
            file.truncate(SIZE)
            return cls(os.dup(file.fileno()))

    def begin_step(self) -> None:
        """A step starts now."""
        self._stamp[0] = time.monotonic_ns()

    def end_step(self) -> None:
        """No step runs."""
        self._stamp[0] = 0

    def expect_step(self) -> None:
        """Stamp from a front end's side: a message is about to wake the core.

        The core stamps over it; one that never wakes counts as stuck.
        """
        if not self._stamp[0]:
            self.begin_step()

    @property
    def stamp(self) -> int:
        """The start of the current step in nanoseconds; 0 where none runs."""
        return self._stamp[0]

    @property
    def step_limit(self) -> float:
        """Processor seconds that a step may use; 0 where none are set."""
        return self._stamp[1] / 1e9

    @step_limit.setter
    def step_limit(self, seconds: float) -> None:
        self._stamp[1] = int(seconds * 1e9)

    def close(self) -> None:
        """Unmap; the other process keeps its own mapping."""
        self._stamp.release()
        self._map.close()
        os.close(self.fd)
