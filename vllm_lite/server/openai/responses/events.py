"""The events of one response: numbered, framed, and kept where they may be asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from vllm_lite.server.sse import named_event

_encode = msgspec.json.Encoder().encode


class EventLog:
    """Frames events in order; a log that keeps them can be read by several readers at once."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._events: list[bytes] = []
        self._next_number = 0
        self._news: list[asyncio.Future[None]] = []
        self._is_closed = False
        # Bytes of the events that are kept.
        self.size = 0

    def add(self, payload: dict[str, Any]) -> bytes:
        """The next event, framed."""
        body = _encode({**payload, "sequence_number": self._next_number})
        event = named_event(payload["type"], body)
        self._next_number += 1
        if self._keep:
            self._events.append(event)
            self.size += len(event)
            self._wake()
        return event

    def close(self) -> None:
        """There will be no more events."""
        self._is_closed = True
        self._wake()

    async def read(self, starting_after: int = -1) -> AsyncIterator[bytes]:
        """Kept events with a greater number than `starting_after`; waits for those to come."""
        place = starting_after + 1
        while True:
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self._is_closed:
                return
            news = asyncio.get_running_loop().create_future()
            self._news.append(news)
            await news

    def _wake(self) -> None:
        waiting, self._news = self._news, []
        for news in waiting:
            if not news.done():
                news.set_result(None)
