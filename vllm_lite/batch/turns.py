"""When rows of a stored batch may run beside what clients wait for.

Knows neither rows nor clients, only how many there are. Invariant: what waits for its turn gets it
in the order in which it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

# Seconds between two looks at what clients have in the engine, while a row waits.
LOOK_EVERY = 0.05
# Seconds after its end that a client is expected back.
LINGER = 1.0


class Turns:
    """Lets `most` run while no client asks for anything, and `least` beside clients' requests."""

    def __init__(self, most: int, least: int, count_others: Callable[[], int]) -> None:
        self.most = most
        self._least = least
        self._count_others = count_others
        self._num_running = 0
        # Of those that wait for a turn, one looks whether there is room.
        self._queue = asyncio.Lock()
        self._has_left = asyncio.Event()
        self._others_seen = -LINGER

    @property
    def is_alone(self) -> bool:
        """Whether nothing of a client's has been in the engine for a while."""
        if self._count_others():
            self._others_seen = time.monotonic()
        return time.monotonic() - self._others_seen >= LINGER

    async def __aenter__(self) -> None:
        async with self._queue:
            while self._num_running >= (self.most if self.is_alone else self._least):
                self._has_left.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_left.wait(), LOOK_EVERY)
            self._num_running += 1

    async def __aexit__(self, *_: object) -> None:
        self._num_running -= 1
        self._has_left.set()


class NoTurns:
    """Of a batch that has the engine for itself."""

    is_alone = True

    async def __aenter__(self) -> None:
        """At once."""

    async def __aexit__(self, *_: object) -> None:
        """Nobody waits for it."""
