"""Responses that can be asked for again, in memory, within bounds, and their events.

Knows no engine. Invariants: what is finished never takes more than MAX_RESPONSES entries or
MAX_BYTES, nor lives longer than MAX_AGE; an entry is seen only by the key that made it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vllm_lite.errors import NotFoundError, RequestError
from vllm_lite.server.replies import named_event

_encode = msgspec.json.Encoder().encode
MAX_RESPONSES = 1000
MAX_BYTES = 256 << 20
# Seconds.
MAX_AGE = 24 * 3600.0


class EventLog:
    """Frames events in order; a log that keeps them can be read by several readers at once."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._events: list[bytes] = []
        self._next_number = 0
        self._news = asyncio.Event()
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
            await self._news.wait()

    def _wake(self) -> None:
        """Release those that wait; who comes later waits for the next event."""
        self._news.set()
        self._news = asyncio.Event()


@dataclass(slots=True)
class StoredResponse:
    """One response and what a next one needs to go on from it."""

    id: str
    # The tenant of its API key; empty where the server asks for none.
    owner: str
    # As GET shows it; replaced as its status changes.
    payload: dict[str, Any]
    # The items of the whole conversation before this response, then those of its own input.
    input_items: list[dict[str, Any]]
    num_earlier_items: int = 0
    # Kept only for a background response that streams.
    events: EventLog | None = None
    # Ends a background response; None for others.
    cancel: Callable[[], Awaitable[None]] | None = None
    is_finished: bool = False
    finished_at: float = field(default=0.0)
    size: int = 0

    @property
    def own_items(self) -> list[dict[str, Any]]:
        """The items that this response added: its input, then its output."""
        return [*self.input_items[self.num_earlier_items :], *self.payload["output"]]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        return [*self.input_items, *self.payload["output"]]


class ResponseStore:
    """Entries by id, the one least lately used first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, StoredResponse] = {}
        # (owner, item's id) -> the finished entry that added it.
        self._holders: dict[tuple[str, str], StoredResponse] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: StoredResponse) -> None:
        """Take in a response that begins; raises RequestError where its id is in use."""
        self._expire()
        if entry.id in self._entries:
            raise RequestError(
                f"A response with the id {entry.id!r} is stored already", "request_id"
            )
        self._entries[entry.id] = entry

    def finish(self, entry: StoredResponse) -> None:
        """Count an entry that will not change any more; the oldest make room for it."""
        if self._entries.get(entry.id) is not entry:
            return
        events = entry.events.size if entry.events is not None else 0
        entry.size = len(msgspec.json.encode([entry.payload, entry.input_items])) + events
        entry.is_finished, entry.finished_at = True, self._clock()
        for item in entry.own_items:
            self._holders[entry.owner, item["id"]] = entry
        self._size += entry.size
        self._touch(entry)
        self._make_room()

    def get(self, response_id: str, owner: str) -> StoredResponse:
        """The entry; raises NotFoundError, for another's too."""
        self._expire()
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner:
            raise NotFoundError(f"There is no response with the id {response_id!r:.200}", "id")
        self._touch(entry)
        return entry

    def item(self, item_id: str, owner: str) -> dict[str, Any] | None:
        """An item of a finished response of this owner; None where there is none."""
        self._expire()
        holder = self._holders.get((owner, item_id))
        if holder is None:
            return None
        self._touch(holder)
        return next(item for item in holder.own_items if item["id"] == item_id)

    def remove(self, entry: StoredResponse) -> None:
        if self._entries.get(entry.id) is entry:
            del self._entries[entry.id]
            self._size -= entry.size
            for item in entry.own_items if entry.is_finished else ():
                if self._holders.get((entry.owner, item["id"])) is entry:
                    del self._holders[entry.owner, item["id"]]

    def _touch(self, entry: StoredResponse) -> None:
        self._entries[entry.id] = self._entries.pop(entry.id)

    def _make_room(self) -> None:
        finished = [entry for entry in self._entries.values() if entry.is_finished]
        excess = len(finished) - MAX_RESPONSES
        for index, entry in enumerate(finished):
            if index >= excess and self._size <= MAX_BYTES:
                break
            self.remove(entry)

    def _expire(self) -> None:
        oldest = self._clock() - MAX_AGE
        for entry in list(self._entries.values()):
            if entry.is_finished and entry.finished_at < oldest:
                self.remove(entry)
