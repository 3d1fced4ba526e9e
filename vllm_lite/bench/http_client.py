"""A small HTTP/1.1 client for thousands of streams at once on one core.

Keeps connections alive and does not interpret bodies: each piece
goes to the caller's function as it is read, without a task switch. Plain
and TLS; no redirects, proxies or compression.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from vllm_lite.errors import UsageError, VLLMLiteError

OnBody = Callable[[bytes], None]

_MAX_ERROR_BODY = 64 * 1024


class TransportError(VLLMLiteError):
    """The exchange did not come to its end: no connection, a broken one, or not HTTP."""


class StaleConnectionError(TransportError):
    """A kept connection was closed before the answer's first byte."""


class HttpClient:
    """One server, as many connections as there are requests at a time."""

    def __init__(self, url: str, headers: Mapping[str, str], *, verify_tls: bool = True) -> None:
        """`url` is where paths are appended to; `headers` go with every request. UsageError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8000")
        self.url = url
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._tls = _tls_context(verify_tls) if parts.scheme == "https" else None
        lines = [f"host: {parts.netloc.rpartition('@')[2]}", "accept-encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any(set(line) & set("\r\n\0") for line in lines):
            raise UsageError("an HTTP header must not hold a line break")
        self._head = "".join(line + "\r\n" for line in lines)
        self._addresses: list[str] = []
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def get(self, path: str, max_bytes: int = 1 << 20) -> tuple[int, bytes]:
        """Status and whole body; TransportError where there is no answer."""
        pieces: list[bytes] = []
        room = max_bytes

        def keep(piece: bytes) -> None:
            nonlocal room
            room -= len(piece)
            if room >= 0:
                pieces.append(piece)

        status, refusal = await self._exchange(f"GET {self._prefix}{path}", "", b"", keep)
        return status, b"".join(pieces) or refusal

    async def post(
        self, path: str, body: bytes, on_body: OnBody, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send JSON; a 200's body goes to `on_body`, piece by piece, and another's is returned.

        Raises TransportError, also where the body breaks off.
        """
        own = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        own += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return await self._exchange(f"POST {self._prefix}{path}", own, body, on_body)

    async def _exchange(
        self, start: str, headers: str, body: bytes, on_body: OnBody
    ) -> tuple[int, bytes]:
        message = f"{start} HTTP/1.1\r\n{self._head}{headers}\r\n".encode() + body
        while self._idle and not self._idle[-1].is_usable:
            self._idle.pop()
        if self._idle:
            try:
                return await self._use(self._idle.pop(), message, on_body)
            except StaleConnectionError:
                pass  # closed while the request was under way: once more, on a fresh one
        return await self._use(await self._connect(), message, on_body)

    async def _use(
        self, connection: _Connection, message: bytes, on_body: OnBody
    ) -> tuple[int, bytes]:
        try:
            answer = await connection.exchange(message, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        return answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        error: OSError | None = None
        try:
            # The address that answered once is asked ever after: no look-up per connection.
            if not self._addresses:
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except OSError as unknown:
            error = unknown
        for address in self._addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._open.discard),
                    address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except OSError as refused:
                error = refused
                continue
            self._addresses = [address]
            self._open.add(connection)
            return connection
        raise TransportError(f"cannot connect to {self.url}: {_cause(error)}")

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[_Connection], None]
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._on_body: OnBody = _drop
        self._status = 0
        self._refusal = b""
        self._has_bytes = self._ends_with_connection = False

    @property
    def is_usable(self) -> bool:
        transport = self._transport
        return transport is not None and not transport.is_closing()

    async def exchange(self, message: bytes, on_body: OnBody) -> tuple[int, bytes]:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise StaleConnectionError("the server closed the connection")
        self._parser = httptools.HttpResponseParser(self)
        self._answer = self._loop.create_future()
        self._on_body, self._status, self._refusal = on_body, 0, b""
        self._has_bytes = False
        # What announces neither a length nor chunks lasts as long as the connection.
        self._ends_with_connection = True
        transport.write(message)
        return await self._answer

    def close(self) -> None:
        """Close at once; what waits in the socket is lost."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # the server speaks out of turn
            return
        self._has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(TransportError(f"the answer is not HTTP: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the exchange that has not ended, unless this is how its body ends."""
        self._transport = None
        self._on_lost(self)
        if self._status and self._ends_with_connection and error is None:
            self._finish()
        elif self._has_bytes:
            self._fail(TransportError(f"the answer broke off: {_cause(error)}"))
        else:
            self._fail(StaleConnectionError(f"no answer: {_cause(error)}"))

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read how the answer's end is marked."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """Pass a piece on, or keep it where it explains a refusal."""
        if self._status == 200:
            self._on_body(piece)
        elif len(self._refusal) < _MAX_ERROR_BODY:
            self._refusal += piece

    def on_message_complete(self) -> None:
        """End the exchange; the connection stays unless the server says otherwise."""
        if 100 <= self._status < 200:
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._finish()

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._status, self._refusal))

    def _fail(self, error: TransportError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _drop(piece: bytes) -> None:
    """Take a piece of a body that nobody reads."""


def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _cause(error: BaseException | None) -> str:
    if error is None:
        return "the server closed the connection"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
