"""The X-Request-Id header of responses, with --enable-request-id-headers."""

from __future__ import annotations

import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAME = b"x-request-id"
_MAX_LENGTH = 256


class RequestIdHeader:
    """ASGI middleware: answers with the client's id, or with a new one that services see too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the header to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _NAME), b"")
        if not 0 < len(given) <= _MAX_LENGTH:
            given = uuid.uuid4().hex.encode()
            others = [entry for entry in scope["headers"] if entry[0] != _NAME]
            scope = {**scope, "headers": [*others, (_NAME, given)]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (_NAME, given)]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_id)
