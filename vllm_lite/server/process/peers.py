"""The other processes of the same server: what each of them counts, for one answer about all.

Every two processes share a socket pair; a question is one byte, an answer a length and as many
bytes. Knows no metric. A process that does not answer in time is left out.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence

import msgspec

# Seconds that a process may take to answer.
ANSWER_TIMEOUT = 2.0
_QUESTION, _ANSWER = b"?", b"!"
_LENGTH = struct.Struct("<I")


class Snapshot(msgspec.Struct):
    """One process's load and metrics."""

    index: int
    num_running: int
    # Metric families, as metrics.exposition writes them.
    families: bytes


class Peers:
    """This process's ends of the pairs; belongs to one event loop from `start` on.

    A server of one process has none.
    """

    def __init__(self, index: int = 0, descriptors: Sequence[int] = ()) -> None:
        self.index = index
        self._sockets = [socket.socket(fileno=fd) for fd in descriptors]
        self._writers: list[asyncio.StreamWriter] = []
        self._answers: list[asyncio.Queue[Snapshot]] = []
        self._asking = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_alone(self) -> bool:
        """Whether the server has no other process."""
        return not self._sockets

    def start(self, describe: Callable[[], Snapshot]) -> None:
        """Answer every question with `describe()` from now on."""
        self._tasks = [
            asyncio.create_task(self._attend(one, describe), name="peer") for one in self._sockets
        ]

    async def ask(self) -> list[Snapshot]:
        """The current snapshots of the other processes."""
        async with self._asking:
            for queue in self._answers:
                while not queue.empty():
                    queue.get_nowait()
            for writer in self._writers:
                writer.write(_QUESTION)
            found = await asyncio.gather(*map(_next, self._answers))
        return [one for one in found if one is not None]

    async def _attend(self, one: socket.socket, describe: Callable[[], Snapshot]) -> None:
        reader, writer = await asyncio.open_connection(sock=one)
        answers: asyncio.Queue[Snapshot] = asyncio.Queue()
        self._writers.append(writer)
        self._answers.append(answers)
        try:
            while kind := await reader.read(1):
                if kind == _QUESTION:
                    data = msgspec.msgpack.encode(describe())
                    writer.write(_ANSWER + _LENGTH.pack(len(data)) + data)
                    continue
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                data = await reader.readexactly(length)
                answers.put_nowait(msgspec.msgpack.decode(data, type=Snapshot))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            # It has ended, and so does this process, soon.
            self._writers.remove(writer)
            self._answers.remove(answers)
            writer.close()


async def _next(answers: asyncio.Queue[Snapshot]) -> Snapshot | None:
    try:
        return await asyncio.wait_for(answers.get(), ANSWER_TIMEOUT)
    except TimeoutError:
        return None
