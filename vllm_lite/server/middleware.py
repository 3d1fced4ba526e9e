"""ASGI middleware: request metrics, CORS in the server's error shape, root path, id header."""

from __future__ import annotations

import time
import uuid

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_lite.metrics.front_end import FrontEndMetrics
from vllm_lite.server.errors import Failure

_ID_HEADER = b"x-request-id"
_MAX_ID_LENGTH = 256


class CountRequests:
    """Counts every request inside all other middleware, where its route is known.

    A client that left before its answer began is not counted.
    """

    def __init__(self, app: ASGIApp, metrics: FrontEndMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        status = size = 0

        async def observed(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, size = message["status"], _length(message.get("headers", ()))
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            if status:
                # Of a ServedRoute, where one was found.
                route = getattr(scope.get("endpoint"), "route", None)
                self._metrics.count_request(
                    None if route is None else route.path,
                    scope["method"],
                    status,
                    sizes=(_length(scope["headers"]), size),
                    seconds=time.monotonic() - begun,
                )


def _length(headers: list[tuple[bytes, bytes]] | tuple[()]) -> int:
    for name, value in headers:
        if name.lower() == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else 0
    return 0


class Cors(CORSMiddleware):
    """Starlette's, but for the body of a refusal."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        text = bytes(response.body).decode()
        headers = {"Vary": response.headers.get("vary", "Origin")}
        return Failure(response.status_code, "BadRequestError", text, headers=headers).response()


class RootPath:
    """Serves every route under `root_path` too, for proxies that do not strip it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; routing ignores the root path where the path begins with it."""
        if scope["type"] == "http":
            scope = {**scope, "root_path": self._root_path}
        await self._app(scope, receive, send)


class RequestIdHeader:
    """Answers with the client's id, or with a new one that services see too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _ID_HEADER), b"")
        if not 0 < len(given) <= _MAX_ID_LENGTH:
            given = uuid.uuid4().hex.encode()
            others = [entry for entry in scope["headers"] if entry[0] != _ID_HEADER]
            scope = {**scope, "headers": [*others, (_ID_HEADER, given)]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (_ID_HEADER, given)]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_id)
