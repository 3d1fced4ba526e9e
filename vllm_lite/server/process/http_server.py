"""uvicorn as this server wants it: protocol, limits, TLS, logging and no signals of its own.

Invariant: a connection keeps at most `max_headers` headers and `max_head` bytes of an unfinished
head, and one that cannot be understood is answered in the server's error shape.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from vllm_lite import envs
from vllm_lite.config.logging import LoggingConfig
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.errors import Failure
from vllm_lite.server.generation import current_request_id

_access = logging.getLogger("uvicorn.access")
# The colon, the space and the line's end.
_HEADER_FRAME = 4
# Seconds that replies may take to reach their clients once nothing is generated any more.
FLUSH_TIMEOUT = 2.0
# Of the lines of a start, programs wait for "Application startup complete."
_START = ("Started server process", "Waiting for application startup")


class _LimitError(Exception):
    """The client sent more than the server reads."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """Refuses heads with too many headers or bytes, and drops trailers."""

    max_headers: ClassVar[int]
    max_head: ClassVar[int]

    # Bytes that came since the head began, and those of its lines that are whole.
    _received = 0
    _head_size = 0
    _is_in_head = True
    _refusal: Failure | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # an AccessLog writes the lines

    def data_received(self, data: bytes) -> None:
        """Parse what came, and answer for what cannot be."""
        if self._refusal is not None:
            return
        if self._is_in_head:
            self._received += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade:
            pass  # Nothing is offered to upgrade to: the request is answered as it stands.
        if self._is_in_head and self._received > self.max_head and self._refusal is None:
            self._refuse_head()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is of no use to anybody."""
        if not self._is_in_head:
            return
        self._head_size += len(name) + len(value) + _HEADER_FRAME
        if len(self.headers) >= self.max_headers:
            self._refusal = Failure(
                431,
                "RequestHeaderFieldsTooLarge",
                f"The request has more than {self.max_headers} headers (--h11-max-header-count)",
            )
            # The parser stops and reports the message as broken.
            raise _LimitError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head_size > self.max_head:
            self._refuse_head()
            raise _LimitError
        super().on_headers_complete()
        self._is_in_head = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_head = True
        self._received = 0

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, and close the connection."""
        failure = self._refusal or Failure(400, "BadRequestError", msg)
        self.logger.info("Refused what is no request: %d, %s", failure.status, failure.message)
        body = failure.body()
        head = [
            STATUS_LINE[failure.status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.close()

    def _refuse_head(self) -> None:
        self._refusal = Failure(
            431,
            "RequestHeaderFieldsTooLarge",
            f"The request's head is larger than {self.max_head} bytes "
            "(--h11-max-incomplete-event-size)",
        )


class AccessLog:
    """Logs a request as uvicorn does, but when its reply has begun to leave, not before."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def observed(message: Message) -> None:
            nonlocal status
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status:
                asked: Any = scope
                client, path = get_client_addr(asked), get_path_with_query_string(asked)
                words = (client, scope["method"], path, scope["http_version"], status)
                _access.info('%s - "%s %s HTTP/%s" %d', *words)
                status = 0

        await self._app(scope, receive, observed)


def limited_protocol(max_headers: int, max_head: int) -> type[LimitedHttpProtocol]:
    """The protocol class for these limits; uvicorn makes one instance a connection."""
    return type(
        "ServerHttpProtocol",
        (LimitedHttpProtocol,),
        {"max_headers": max_headers, "max_head": max_head},
    )


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the Lifecycle."""
        yield


def http_server(
    app: ASGIApp, server_config: ServerConfig, tls: ssl.SSLContext | None, log: LoggingConfig
) -> HttpServer:
    """A server of `app`, over TLS where there is a context; it opens no socket."""
    writes_access = not server_config.disable_uvicorn_access_log
    config = uvicorn.Config(
        AccessLog(app) if writes_access else app,
        http=limited_protocol(
            server_config.h11_max_header_count, server_config.h11_max_incomplete_event_size
        ),
        loop="none",
        ws="none",
        log_level=server_config.uvicorn_log_level,
        access_log=writes_access,
        timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
        timeout_graceful_shutdown=round(FLUSH_TIMEOUT),
        log_config=_log_config(log),
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
    # Only now uvicorn's logger is what it will be.
    paths = (server_config.disable_access_log_for_endpoints or "").split(",")
    if silenced := [path.strip() for path in paths if path.strip()]:
        _access.addFilter(PathFilter(silenced))
    _access.addFilter(_with_request_id)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not str(record.msg).startswith(_START)
    )
    return HttpServer(config)


class PathFilter(logging.Filter):
    """Drops the log lines of requests to certain paths, with any query."""

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; its arguments are client, method, path, version, status."""
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) < 3:
            return True
        return str(arguments[2]).partition("?")[0] not in self._paths


def _with_request_id(record: logging.LogRecord) -> bool:
    record.request_id = current_request_id() or None
    return True


def _log_config(log: LoggingConfig) -> dict[str, object] | None:
    """The argument of uvicorn's dictConfig; None leaves its loggers as they are."""
    if log.pylogging_config_file is not None or log.configure_logging is False:
        return None
    if log.formatter == "text":
        return LOGGING_CONFIG
    as_json = {"()": "vllm_lite.log.JsonFormatter"}
    return {**LOGGING_CONFIG, "formatters": dict.fromkeys(LOGGING_CONFIG["formatters"], as_json)}
