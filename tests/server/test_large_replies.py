"""Large answers are made one at a time, and what slow readers leave unread is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of, http
from tests.server.running import running
from vllm_lite.errors import QueueFullError
from vllm_lite.server.replies import LARGE, MAX_UNREAD, LargeReplies


async def test_one_large_answer_is_made_at_a_time() -> None:
    replies, running_now, most = LargeReplies(), 0, 0

    async def make() -> None:
        nonlocal running_now, most
        async with replies.making():
            running_now += 1
            most = max(most, running_now)
            await asyncio.sleep(0.001)
            running_now -= 1

    await asyncio.gather(*(make() for _ in range(20)))
    assert most == 1


@pytest.mark.parametrize("size", [10, LARGE - 1, LARGE, 3 * LARGE + 17])
async def test_an_answer_arrives_whole(size: int) -> None:
    replies, sent = LargeReplies(), list[dict[str, Any]]()
    body = bytes(i % 251 for i in range(size))

    async def send(message: Any) -> None:
        if size >= LARGE and message["type"] == "http.response.body":
            assert replies.unread == size
        sent.append(message)

    response = replies.response(body)
    await response({"type": "http"}, None, send)  # type: ignore[arg-type]
    assert b"".join(message.get("body", b"") for message in sent) == body
    assert dict(sent[0]["headers"])[b"content-length"] == str(size).encode()
    assert not sent[-1].get("more_body") and replies.unread == 0


async def test_a_reader_that_leaves_gives_its_share_back() -> None:
    replies = LargeReplies()

    async def leave(message: Any) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await replies.response(b"x" * LARGE)({"type": "http"}, None, leave)  # type: ignore[arg-type]
    assert replies.unread == 0


async def test_too_many_unread_answers_are_429() -> None:
    app = app_of(FakeEngineClient())
    replies = app.state.context.large_replies
    replies.begin(MAX_UNREAD)
    with pytest.raises(QueueFullError):
        async with replies.making():
            raise AssertionError("it must wait")
    async with http(app=app) as session:
        long = {"prompt": "a" * (1 << 15)}
        assert (await session.post("/tokenize", json=long)).status_code == 429
        assert (await session.post("/tokenize", json={"prompt": "a"})).status_code == 200
        replies.end(MAX_UNREAD)
        assert (await session.post("/tokenize", json=long)).status_code == 200


async def test_a_slow_reader_holds_its_answer_and_no_more() -> None:
    """Unread bytes stay with the server until the client is gone, and are counted."""
    body = b'{"prompt": "' + b"a" * (1 << 20) + b'", "return_token_strs": true}'
    head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    async with running(FakeEngineClient()) as server:
        app: Any = server.server.config.loaded_app
        while not hasattr(app, "state"):
            app = app.app if hasattr(app, "app") else app._app
        replies = app.state.context.large_replies
        address = server.listener.socket.getsockname()[:2]
        reader, writer = await asyncio.open_connection(*address, limit=1 << 12)
        writer.write(head + body)
        assert (await asyncio.wait_for(reader.read(100), 20)).startswith(b"HTTP/1.1 200")
        assert replies.unread > LARGE
        writer.transport.abort()
        async with asyncio.timeout(10):
            while replies.unread:
                await asyncio.sleep(0.01)
