"""Counts every request where the route that took it is known: inside all other middleware."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_lite.metrics.front_end import FrontEndMetrics


class CountRequests:
    """Feeds FrontEndMetrics; a client that left before its answer began is not counted."""

    def __init__(self, app: ASGIApp, metrics: FrontEndMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; count it once its answer has ended."""
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
                route = scope.get("route")
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
