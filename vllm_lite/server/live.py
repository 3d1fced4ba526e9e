"""The engine's state, as events for the page's Live view.

The engine is asked only while somebody watches, twice a second for all of them. Invariant: with
keys, a watcher is told of the requests of its own key; of others it sees what they hold together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.metrics.stats import EngineSnapshot
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import current_origin
from vllm_lite.server.sse import EventStream, sse

# Seconds between two events.
PERIOD = 0.5
_OTHERS = -3


class LiveService:
    """Streams of what one engine does."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._asking = asyncio.Lock()
        self._taken = 0.0
        self._snapshot: EngineSnapshot | None = None

    async def stream(self, request: Request) -> Response:
        """Stream what the engine does, twice a second, for as long as the reader stays."""
        return EventStream(self._events(current_origin().tenant), None, "live")

    async def _events(self, tenant: str) -> AsyncIterator[bytes]:
        generations = self._context.generations
        while True:
            generations.check_open()
            yield sse(msgspec.json.encode(_shown(await self._latest(), tenant)))
            await asyncio.sleep(PERIOD)

    async def _latest(self) -> EngineSnapshot:
        """The snapshot that all watchers share for a while."""
        async with self._asking:
            if self._snapshot is None or time.monotonic() - self._taken >= PERIOD:
                self._snapshot = await self._context.client.snapshot()
                self._taken = time.monotonic()
            return self._snapshot


def _shown(snapshot: EngineSnapshot, tenant: str) -> dict[str, Any]:
    """The part of a snapshot that a tenant may see, as plain data; without keys, all of it."""
    own = [i for i, one in enumerate(snapshot.requests) if not tenant or one.tenant == tenant]
    place = {index: at for at, index in enumerate(own)}
    shown: dict[str, Any] = msgspec.to_builtins(snapshot)
    shown["requests"] = [shown["requests"][index] for index in own]
    for one in shown["requests"]:
        del one["tenant"]
    shown["blocks"] = [b if b < 0 else place.get(b, _OTHERS) for b in snapshot.blocks]
    return shown
