"""Options of the front end that show only on a real connection."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, error_of
from tests.server.running import running
from vllm_lite.config.options.cli import parse_serve_args
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.server.app import build_app

CHAT = "/v1/chat/completions"


def head(*lines: str) -> bytes:
    return "".join(line + "\r\n" for line in lines).encode()


@pytest.mark.parametrize(("count", "status"), [(10, 200), (11, 431)])
async def test_a_request_with_more_headers_than_allowed_is_refused(count: int, status: int) -> None:
    async with running(FakeEngineClient(), h11_max_header_count=10) as server:
        given = [f"x-{i}: 1" for i in range(count - 2)]
        answer = await server.send(
            head("GET /health HTTP/1.1", "host: a", *given, "connection: close", "")
        )
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    if status == 431:
        assert b"h11-max-header-count" in answer


@pytest.mark.parametrize("whole", [True, False])
async def test_a_head_larger_than_allowed_is_refused_before_it_ends(whole: bool) -> None:
    async with running(FakeEngineClient(), h11_max_incomplete_event_size=1000) as server:
        # An unfinished one is answered too: the server holds no more of it than the limit.
        text = head("GET /health HTTP/1.1", "host: a", "x: " + "y" * 1000)
        answer = await server.send(text + (b"\r\n" if whole else b""))
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 431
        # Bodies have a limit of their own.
        body = {"messages": [{"role": "user", "content": "a" * 50}], "metadata": {"x": "y" * 2000}}
        assert (await server.http.post(CHAT, json=body)).status_code == 200
        for _ in range(10):
            assert (await server.http.get("/health")).status_code == 200


async def test_invalid_http_gets_the_usual_error() -> None:
    async with running(FakeEngineClient()) as server:
        answer = await server.send(b"\x00\x01nonsense\r\n\r\n")
    asked = httpx.Request("GET", "http://server/")
    response = httpx.Response(400, content=answer.partition(b"\r\n\r\n")[2], request=asked)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(response)["type"] == "BadRequestError"


async def test_trailers_change_nothing() -> None:
    client = FakeEngineClient()
    async with running(client, enable_request_id_headers=True) as server:
        body = json.dumps({"messages": HI}).encode()
        first = head(
            f"POST {CHAT} HTTP/1.1",
            "host: a",
            "content-type: application/json",
            "transfer-encoding: chunked",
            "connection: close",
            "",
            f"{len(body):x}",
        )
        answer = await server.send(
            first + body + head("", "0", "x-request-id: smuggled", "authorization: Bearer k", "")
        )
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"smuggled" not in answer


class Marked:
    """A middleware class."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-mark", b"class")]
            await send(message)

        await self.app(scope, receive, marked)


async def marked(request: Any, call_next: Any) -> Any:
    """A middleware function."""
    response = await call_next(request)
    response.headers.append("x-mark", "function")
    return response


async def broken(request: Any, call_next: Any) -> Any:
    """A middleware that fails."""
    raise RuntimeError("a secret")


async def test_middleware_wraps_every_route_in_the_order_given() -> None:
    options = [f"{__name__}.Marked", f"{__name__}.marked"]
    async with running(FakeEngineClient(), middleware=options, api_key=["k"]) as server:
        for path, status in (("/health", 200), ("/v1/models", 401), ("/none", 401)):
            answer = await server.http.get(path)
            assert answer.status_code == status
            assert answer.headers.get_list("x-mark") == ["class", "function"]


async def test_failing_middleware_shows_clients_nothing() -> None:
    async with running(FakeEngineClient(), middleware=[f"{__name__}.broken"]) as server:
        answer = await server.http.get("/health", headers={"x-request-id": "mine"})
    assert answer.status_code == 500
    assert "mine" in error_of(answer)["message"] and "secret" not in answer.text


@pytest.mark.parametrize("path", ["nothing", "no.such.module", "json.nothing", "json.dumps"])
def test_middleware_that_cannot_be_used_is_named(path: str) -> None:
    with pytest.raises(UsageError, match="--middleware"):
        build_app(FakeEngineClient(), ServerConfig(middleware=[path]))


def test_the_flag_may_be_given_more_than_once() -> None:
    words = ["demo", "--middleware", "a.b", "--middleware", "c.d", "--disable-log-stats"]
    assert parse_serve_args(words)[1].middleware == ["a.b", "c.d"]


async def test_access_lines_have_the_known_form_and_leave_out_what_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("uvicorn.access")
    before = list(logger.filters)
    quiet = "/health, /metrics"
    try:
        async with running(FakeEngineClient(), disable_access_log_for_endpoints=quiet) as server:
            logger.addHandler(caplog.handler)
            for path in ("/health", "/health?x=1", "/metrics", "/version?x=1"):
                await server.http.get(path)
    finally:
        logger.removeHandler(caplog.handler)
        logger.filters[:] = before
    lines = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert len(lines) == 1
    assert lines[0].startswith("127.0.0.1:")
    assert lines[0].endswith(' - "GET /version?x=1 HTTP/1.1" 200')


async def test_no_access_lines_where_they_are_off() -> None:
    async with running(FakeEngineClient(), disable_uvicorn_access_log=True):
        assert not logging.getLogger("uvicorn.access").hasHandlers()


async def test_an_idle_connection_is_kept_as_long_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
    async with running(FakeEngineClient()) as server:
        # The client does not ask for an end: the server makes it.
        answer = await server.send(head("GET /health HTTP/1.1", "host: a", ""))
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("on", [True, False])
async def test_documents_are_served_unless_they_are_off(on: bool) -> None:
    async with running(FakeEngineClient(), disable_fastapi_docs=not on) as server:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert (await server.http.get(path)).status_code == (200 if on else 404)
