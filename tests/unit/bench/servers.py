"""A server that answers from a script, byte for byte, to test HTTP clients with."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

# Gets a request's head and body, and the stream to answer on; closes it to end the connection.
Answer = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedServer:
    """A test server's address and the requests it got."""

    url: str
    num_connections: int = 0
    heads: list[str] = field(default_factory=list)


@asynccontextmanager
async def scripted_server(
    answer: Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """Serve `answer` on a free port of the loopback."""
    state = ScriptedServer("")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.num_connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                state.heads.append(head)
                await answer(head, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    state.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()


def chunked(*pieces: bytes) -> bytes:
    """`pieces` as a whole chunked answer with status 200."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
