"""Requests that a server refuses, one of every kind, as bytes for a connection of their own."""

from __future__ import annotations

import json
from typing import Any


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """A request as a client writes it; a body that is not bytes goes as JSON."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = {"Host": "server", "Connection": "close", "Content-Length": str(len(raw))}
    head |= {"Content-Type": "application/json"} if body is not None else {}
    head |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join([*lines, "", ""]).encode() + raw


_HI = {"messages": [{"role": "user", "content": "hi"}]}
# What is wrong -> the status it gets and the request.
REFUSED: dict[str, tuple[int, bytes]] = {
    "a path": (404, request("GET", "/nowhere")),
    "a method": (405, request("GET", "/v1/completions")),
    "a model": (404, request("POST", "/v1/completions", {"prompt": "a", "model": "none"})),
    "a value": (400, request("POST", "/v1/chat/completions", {**_HI, "n": 0})),
    "a streamed value": (400, request("POST", "/v1/completions", {"prompt": "", "stream": True})),
    "a type": (400, request("POST", "/v1/chat/completions", {"messages": 1})),
    "JSON": (400, request("POST", "/v1/messages", b"{")),
    "UTF-8": (400, request("POST", "/v1/responses", b'{"input": "\xff"}')),
    "no object": (400, request("POST", "/tokenize", [])),
    "no JSON": (400, request("POST", "/detokenize", b"a=1", Content_Type="text/plain")),
    "an id": (404, request("GET", "/v1/responses/none")),
    "a header": (400, request("POST", "/v1/completions", {"prompt": "a"}, X_Request_Id="a" * 300)),
    "too many headers": (431, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n"),
    "no HTTP": (400, b"nonsense\r\n\r\n"),
    "a target": (400, b"GET \x00 HTTP/1.1\r\n\r\n"),
    "a length": (400, request("POST", "/v1/completions", {"prompt": "a"}, Content_Length="x")),
    "an upgrade": (
        404,
        request("GET", "/nowhere", Connection="Upgrade, close", Upgrade="websocket"),
    ),
}
