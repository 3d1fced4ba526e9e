"""A client that leaves costs the engine nothing more, whatever it was waiting for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, Connection, app_of, chunks

CHAT = ("/v1/chat/completions", {"messages": HI})
PROMPTS = ("/v1/completions", {"prompt": ["a", "b", "c"]})


async def until_running(client: FakeEngineClient, count: int) -> None:
    while len(client.running) < count:
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "count"), [(*CHAT, 1), (*PROMPTS, 3)])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_queued_request_ends_when_its_client_leaves(
    path: str, body: dict[str, Any], count: int, n: int, stream: bool
) -> None:
    client = FakeEngineClient()
    client.gate = asyncio.Event()  # no token is ever made
    app = app_of(client)
    connection = Connection(app, path, {**body, "stream": stream, "n": n})
    await until_running(client, count)
    await connection.leave()
    assert client.running == set()
    assert len(client.aborted) == count
    assert len(app.state.context.generations) == 0


@pytest.mark.parametrize(("path", "body", "count"), [(*CHAT, 1), (*PROMPTS, 3)])
async def test_a_stream_ends_when_its_client_leaves(
    path: str, body: dict[str, Any], count: int
) -> None:
    client = FakeEngineClient("A" * 100)
    client.gate = asyncio.Event()
    client.gate.set()
    app = app_of(client)
    connection = Connection(app, path, {**body, "stream": True})
    await connection.wait_bytes()
    client.gate.clear()
    await connection.leave()
    assert client.running == set()
    assert len(client.aborted) == count
    assert len(app.state.context.generations) == 0


async def test_a_reply_that_was_read_to_its_end_aborts_nothing() -> None:
    client = FakeEngineClient()
    connection = Connection(app_of(client), CHAT[0], {**CHAT[1], "stream": True})
    await connection.task
    text = b"".join(message.get("body", b"") for message in connection.sent).decode()
    assert chunks(text)[-1]["choices"][0]["finish_reason"] == "stop"
    assert client.aborted == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
async def test_request_whose_client_left_is_logged(
    stream: bool, leaves: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    caplog.set_level(logging.INFO, logger="vllm_lite")
    client = FakeEngineClient("A" * 10)
    client.gate = asyncio.Event()
    path, body = CHAT
    body = {**body, "stream": stream, "request_id": "mine"}
    connection = Connection(app_of(client, enable_log_requests=True), path, body)
    await until_running(client, 1)
    if leaves:
        await connection.leave()
    else:
        client.gate.set()
        await connection.task
    assert ("Request chatcmpl-mine aborted." in caplog.text) is leaves


async def test_a_failing_prompt_ends_its_siblings() -> None:
    client = FakeEngineClient("A" * 100)
    client.failure, client.fail_after = RuntimeError("boom"), 3
    connection = Connection(app_of(client), PROMPTS[0], PROMPTS[1])
    await asyncio.wait_for(connection.task, 5)
    assert connection.sent[0]["status"] == 500
    assert client.running == set()


@pytest.mark.parametrize("stream", [False, True])
async def test_draining_refuses_new_requests_and_ends_running_ones_with_abort(
    stream: bool,
) -> None:
    client = FakeEngineClient("A" * 100)
    client.gate = asyncio.Event()
    app = app_of(client)
    generations = app.state.context.generations
    connection = Connection(app, CHAT[0], {**CHAT[1], "stream": stream})
    await until_running(client, 1)
    await generations.drain(0.01)
    late = Connection(app, CHAT[0], CHAT[1])
    await late.task
    assert late.sent[0]["status"] == 503
    await asyncio.wait_for(connection.task, 5)
    text = b"".join(message.get("body", b"") for message in connection.sent)
    assert b'"finish_reason":"abort"' in text
    assert await generations.wait_idle(1)


async def test_draining_lets_a_request_finish_in_time() -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    app = app_of(client)
    connection = Connection(app, CHAT[0], CHAT[1])
    await until_running(client, 1)
    draining = asyncio.create_task(app.state.context.generations.drain(5))
    await asyncio.sleep(0)
    client.gate.set()
    await draining
    assert b'"finish_reason":"stop"' in connection.sent[-1]["body"]
