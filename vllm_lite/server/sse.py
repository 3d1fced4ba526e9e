"""Server-sent events: the framing, and a response that ends when its reader does.

Knows no chunk format. Invariant: however the response ends, its generation is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vllm_lite.server.errors import failure_of
from vllm_lite.server.generation import ClientLeftError, Generation, run_while_connected

DONE = b"data: [DONE]\n\n"
# A comment to readers of events; it keeps proxies from closing what is only slow.
KEEP_ALIVE = b": keep-alive\n\n"


def sse(payload: bytes) -> bytes:
    """One event that carries `payload`, JSON without line breaks."""
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    """One event of the type `name`."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), payload)


class EventStream(Response):
    """Sends `events` (framed already) as they come, then `ending`; an error becomes an event.

    Where no generation is given, what makes the events goes on without their reader.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        generation: Generation | None,
        request_id: str,
        headers: Mapping[str, str] | None = None,
        ending: bytes = DONE,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **(headers or {})})
        # The length of a stream is not known before its end.
        del self.headers["content-length"]
        self._events = events
        self._generation = generation
        self._request_id = request_id
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send headers at once, then every event."""
        interval = scope["app"].state.context.server_config.sse_keep_alive_interval
        if interval:
            self._events = with_keep_alive(self._events, interval)
        try:
            await run_while_connected(receive, self._send_all(send))
        except (ClientLeftError, OSError):
            pass
        finally:
            if self._generation is not None:
                await self._generation.close()

    async def _send_all(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            last = self._ending
        except OSError:
            raise
        except Exception as error:
            last = sse(failure_of(error, self._request_id).body()) + self._ending
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def with_keep_alive(events: AsyncIterator[bytes], interval: float) -> AsyncIterator[bytes]:
    """`events`, and a comment whenever none has come for `interval` seconds."""
    upcoming: asyncio.Future[bytes] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait((upcoming,), timeout=interval))[0]:
                yield KEEP_ALIVE
            try:
                event = upcoming.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        if upcoming is not None and not upcoming.done():
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
