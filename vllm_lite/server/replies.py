"""Replies: large JSON bodies, of which few are made and read at a time, and server-sent events.

Knows no route and no chunk format. Invariants: what all large replies hold is bounded, however
slowly clients read; however a stream ends, its generation is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vllm_lite.errors import QueueFullError
from vllm_lite.outputs import RequestOutput
from vllm_lite.server.errors import failure_of
from vllm_lite.server.generation import ClientLeftError, Generation, run_while_connected

_T = TypeVar("_T")
LARGE = 1 << 20
# Bytes of large answers that clients have not read yet.
MAX_UNREAD = 64 << 20
_PIECE = 1 << 16
# Positions with log-probabilities that are written in a few milliseconds.
_FEW_POSITIONS = 256
DONE = b"data: [DONE]\n\n"
# A comment to readers of events; it keeps proxies from closing what is only slow.
KEEP_ALIVE = b": keep-alive\n\n"


async def written(outputs: list[RequestOutput], write: Callable[[], _T]) -> _T:
    """The result of `write`, in a thread of its own where `outputs` have many log-probabilities.

    A thread keeps the event loop free while thousands of objects are encoded.
    """
    positions = sum(len(output.prompt_logprobs or ()) for output in outputs)
    positions += sum(len(choice.logprobs or ()) for output in outputs for choice in output.outputs)
    return write() if positions <= _FEW_POSITIONS else await asyncio.to_thread(write)


class LargeReplies:
    """The large answers of one process."""

    def __init__(self) -> None:
        self.unread = 0
        # Objects take many times the bytes that they become: one answer is made at a time.
        self._making = asyncio.Semaphore(1)
        # A C library without it gives memory back by itself.
        self._trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", int)

    @asynccontextmanager
    async def making(self) -> AsyncIterator[None]:
        """Around what may make a large answer; waits for its turn. Raises QueueFullError."""
        self._check_room()
        async with self._making:
            self._check_room()
            yield

    def _check_room(self) -> None:
        if self.unread >= MAX_UNREAD:
            raise QueueFullError(
                f"Answers of {self.unread} bytes wait to be read by their clients; read them, or "
                "ask again later"
            )

    def response(self, body: bytes | bytearray) -> Response:
        """A JSON answer; a large one counts until it was sent."""
        if len(body) < LARGE:
            return Response(bytes(body), media_type="application/json")
        return _LargeResponse(body, self)

    def json(self, payload: object) -> Response:
        return self.response(msgspec.json.encode(payload))

    def begin(self, size: int) -> None:
        """A client begins to read an answer of `size` bytes."""
        self.unread += size

    def end(self, size: int) -> None:
        """It has gone, whether it read all or not."""
        self.unread -= size
        self._trim(0)


class _LargeResponse(Response):
    """Sent in pieces: each waits until the client has read those before it."""

    media_type = "application/json"

    def __init__(self, body: bytes | bytearray, replies: LargeReplies) -> None:
        super().__init__(memoryview(body))
        self._replies = replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, self.body = self.body, b""
        size = len(body)
        self._replies.begin(size)
        try:
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            for start in range(0, size, _PIECE):
                piece = bytes(body[start : start + _PIECE])
                is_last = start + _PIECE >= size
                await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
        finally:
            del body
            self._replies.end(size)


def sse(payload: bytes) -> bytes:
    """One event that carries `payload`, JSON without line breaks."""
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), payload)


class EventStream(Response):
    """Sends `events` (framed already) as they come, then `ending`; an error becomes an event.

    Where no generation is given, what makes the events goes on without their reader.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        generation: Generation[RequestOutput] | None,
        request_id: str,
        ending: bytes = DONE,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache"})
        # The length of a stream is not known before its end.
        del self.headers["content-length"]
        self._events = events
        self._generation = generation
        self._request_id = request_id
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
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
