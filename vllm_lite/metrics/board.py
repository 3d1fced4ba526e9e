"""Counters that the front ends of one engine share in mapped memory.

Each writes its own row and reads the others'. An aligned 8-byte store is atomic,
so there are no locks; a reader may be one update behind.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from enum import IntEnum

_BYTES = 8


class Column(IntEnum):
    """The columns of a row."""

    # Now: sequences in the engine, prompt tokens that have not been computed.
    NUM_UNFINISHED = 0
    NUM_WAITING_TOKENS = 1
    # Since the start.
    PROMPT_TOKENS = 2
    GENERATION_TOKENS = 3


class Board:
    """One front end's view: its own row, and the sum of the others'.

    By default the front end has the engine for itself.
    """

    def __init__(self, fd: int = -1, index: int = 0, count: int = 1) -> None:
        self.fd = fd
        self._count = count
        self._map = mmap.mmap(fd, count * len(Column) * _BYTES)
        self._cells = memoryview(self._map).cast("q")
        self._own = index * len(Column)

    @classmethod
    def create(cls, count: int) -> Board:
        """The first front end's; hand `fd` to the others."""
        with tempfile.TemporaryFile() as file:
            file.truncate(count * len(Column) * _BYTES)
            return cls(os.dup(file.fileno()), 0, count)

    def set(self, column: Column, value: int) -> None:
        self._cells[self._own + column] = value

    def add(self, column: Column, value: int) -> None:
        self._cells[self._own + column] += value

    def others(self, column: Column) -> int:
        """The sum of the other rows."""
        width, cells = len(Column), self._cells
        total = sum(cells[row * width + column] for row in range(self._count))
        return total - cells[self._own + column]
