"""Ways to talk to an application without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from fastapi import FastAPI

from tests.server.fake_client import FakeEngineClient
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.app import build_app

HI = [{"role": "user", "content": "hi"}]


def app_of(client: FakeEngineClient | None = None, **options: Any) -> FastAPI:
    """The application over `client`, with options of ServerConfig."""
    return build_app(client or FakeEngineClient(), ServerConfig(**options))


def http(
    client: FakeEngineClient | None = None,
    *,
    headers: dict[str, str] | None = None,
    app: FastAPI | None = None,
    **options: Any,
) -> httpx.AsyncClient:
    """An HTTP client of the application."""
    transport = httpx.ASGITransport(app or app_of(client, **options))
    return httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)


async def post(
    path: str, body: Any, client: FakeEngineClient | None = None, **options: Any
) -> httpx.Response:
    """One POST to a fresh application."""
    async with http(client, **options) as session:
        return await session.post(path, json=body)


async def chat(client: FakeEngineClient | None = None, **body: Any) -> httpx.Response:
    """One chat request."""
    return await post("/v1/chat/completions", {"messages": HI, **body}, client)


async def complete(client: FakeEngineClient | None = None, **body: Any) -> httpx.Response:
    """One completion request."""
    return await post("/v1/completions", {"prompt": "hi", **body}, client)


def chunks(text: str) -> list[Any]:
    """The payloads of a stream that ends as it should."""
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], events[-2:]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, its shape checked."""
    payload = response.json()
    # Anthropic's clients expect one key more around the same object.
    is_anthropic = response.request.url.path.startswith("/v1/messages")
    assert payload.keys() == ({"type", "error"} if is_anthropic else {"error"})
    error: dict[str, Any] = payload["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == response.status_code
    assert isinstance(error["message"], str) and error["message"]
    return error


class Connection:
    """One HTTP request whose client can leave at any time."""

    def __init__(self, app: FastAPI, path: str, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        self._news = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self._news.set()

    async def wait_bytes(self) -> None:
        """Until a part of the body has come."""
        while not any(message.get("body") for message in self.sent):
            self._news.clear()
            await self._news.wait()

    async def leave(self) -> None:
        """Close the connection and wait until the application is done with it."""
        self._left.set()
        await asyncio.wait_for(self.task, 5)
