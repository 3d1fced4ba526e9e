"""Streams byte for byte on the wire, and rules that no stream may break.

The golden files hold whole streams, with the time and the fingerprint's hash replaced.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, Connection, app_of, chunks, error_of, http
from vllm_lite.errors import EngineDeadError, EngineGenerateError, QueueFullError, RequestError
from vllm_lite.outputs import RequestOutput
from vllm_lite.server.replies import KEEP_ALIVE, with_keep_alive


class LateFirst(FakeEngineClient):
    """Lets the first choice, which alone scores the prompt, speak after the others."""

    async def _run(self, *asked: Any) -> AsyncIterator[RequestOutput]:
        held: list[RequestOutput] = []
        async for output in super()._run(*asked):
            first = [choice for choice in output.outputs if not choice.index]
            output.outputs = [choice for choice in output.outputs if choice.index]
            held.append(replace(output, outputs=first))
            yield replace(output, prompt_logprobs=None, finished=False)
        for output in held:
            yield output


GOLDEN = Path(__file__).parent / "golden"
USAGE = {"stream_options": {"include_usage": True}}
CHAT: dict[str, dict[str, Any]] = {
    "chat": {},
    "chat_usage_n2": {"n": 2, **USAGE},
    "chat_logprobs_ids": {
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "max_tokens": 2,
    },
    "chat_stop_echo": {
        "stop": "l",
        "echo": True,
        "add_generation_prompt": False,
        "messages": [*HI, {"role": "assistant", "content": "So: "}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "completion": {},
    "completion_prompts_n2": {"prompt": ["a", "bc"], "n": 2, "max_tokens": 2, **USAGE},
    "completion_echo_logprobs": {
        "echo": True,
        "logprobs": 1,
        "return_token_ids": True,
        "max_tokens": 3,
    },
}


async def stream(
    path: str, body: dict[str, Any], client: FakeEngineClient | None = None, **options: Any
) -> str:
    """The text of a stream."""
    async with http(client or FakeEngineClient("Hél", "Bye"), **options) as session:
        headers = {"X-Request-Id": "req"}
        response = await session.post(path, json={**body, "stream": True}, headers=headers)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return response.text


def settled(text: str) -> str:
    """A stream without what changes from run to run."""
    text = re.sub(r'"created":\d+', '"created":0', text)
    return re.sub(r"vllm-lite-[\d.]+-[0-9a-f]{8}", "FINGERPRINT", text)


@pytest.mark.parametrize("name", CHAT)
async def test_a_chat_stream_is_as_its_golden_file(name: str) -> None:
    text = await stream("/v1/chat/completions", {"messages": HI, **CHAT[name]})
    assert settled(text) == (GOLDEN / f"{name}.sse").read_text()


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_a_completion_stream_is_as_its_golden_file(name: str) -> None:
    text = await stream("/v1/completions", {"prompt": "ab", **COMPLETIONS[name]})
    assert settled(text) == (GOLDEN / f"{name}.sse").read_text()


@pytest.mark.parametrize("body", CHAT.values(), ids=CHAT)
async def test_streamed_chat_joins_to_the_whole_reply(body: dict[str, Any]) -> None:
    client = FakeEngineClient("Hél", "Bye")
    body = {"messages": HI, **body}
    contents: dict[int, str] = {}
    reasons: dict[int, tuple[Any, Any]] = {}
    for chunk in chunks(await stream("/v1/chat/completions", body, client)):
        for choice in chunk["choices"]:
            index = choice["index"]
            contents[index] = contents.get(index, "") + choice["delta"].get("content", "")
            if choice["finish_reason"]:
                reasons[index] = choice["finish_reason"], choice["stop_reason"]
    async with http(client) as session:
        body.pop("stream_options", None)
        whole = (await session.post("/v1/chat/completions", json=body)).json()
    for choice in whole["choices"]:
        assert contents[choice["index"]] == choice["message"]["content"]
        assert reasons[choice["index"]] == (choice["finish_reason"], choice["stop_reason"])


async def test_usage_of_a_stream_is_that_of_the_whole_reply() -> None:
    body = {"prompt": ["a", "bc"], "n": 2}
    last = chunks(await stream("/v1/completions", {**body, **USAGE}))[-1]
    async with http(FakeEngineClient("Hél", "Bye")) as session:
        whole = (await session.post("/v1/completions", json=body)).json()
    assert last["choices"] == []
    for name, value in last["usage"].items():
        assert whole["usage"][name] == value


async def test_the_server_can_force_usage_into_every_stream() -> None:
    text = await stream("/v1/completions", {"prompt": "a"}, enable_force_include_usage=True)
    assert all("usage" in chunk for chunk in chunks(text))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (EngineGenerateError("CUDA error at 0xdead in /opt/x.py"), "chatcmpl-req"),
        (EngineDeadError("The engine core died: /opt/secret"), "engine has stopped"),
        (RuntimeError("token=hunter2"), "chatcmpl-req"),
    ],
)
async def test_a_failure_in_mid_stream_is_an_event_and_then_done(
    failure: Exception, words: str
) -> None:
    client = FakeEngineClient("Hello")
    client.failure, client.fail_after = failure, 2
    *_, last = chunks(await stream("/v1/chat/completions", {"messages": HI}, client))
    assert (last["error"]["code"], last["error"]["type"]) == (500, "InternalServerError")
    assert words in last["error"]["message"]
    for secret in ("/opt", "0xdead", "hunter2"):
        assert secret not in last["error"]["message"]
    assert client.running == set()


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("streams", [False, True])
async def test_why_a_request_cannot_go_on_reaches_its_client(path: str, streams: bool) -> None:
    client = FakeEngineClient("Hello")
    client.failure, client.fail_after = RequestError("its constraint takes too long"), 2
    asked = {"completions": {"prompt": "a"}, "responses": {"input": "a"}}.get(path)
    asked = asked or {"messages": HI, "max_tokens": 9, "model": "tiny"}
    async with http(client) as session:
        response = await session.post(f"/v1/{path}", json={**asked, "stream": streams})
    assert response.status_code == (200 if streams else 400)
    assert "its constraint takes too long" in response.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_refusal_before_the_first_token_is_an_http_status(path: str) -> None:
    client = FakeEngineClient()
    client.refusal = QueueFullError("8 requests wait already", retry_after=3)
    async with http(client) as session:
        body = {"messages": HI, "prompt": "a", "stream": True}
        response = await session.post(path, json=body)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    error_of(response)


async def test_a_stream_without_news_sends_comments_where_asked() -> None:
    released = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        yield b"1"
        await released.wait()
        yield b"2"
        raise ValueError

    seen = []
    with pytest.raises(ValueError):
        async for event in with_keep_alive(events(), 0.01):
            seen.append(event)
            if seen.count(KEEP_ALIVE) == 2:
                released.set()
    assert [event for event in seen if event != KEEP_ALIVE] == [b"1", b"2"]


async def test_a_stream_with_comments_ends_with_its_reader() -> None:
    client = FakeEngineClient("A" * 50)
    client.gate = asyncio.Event()
    app = app_of(client, sse_keep_alive_interval=1)
    connection = Connection(app, "/v1/completions", {"prompt": "a", "stream": True})
    while not client.running:
        await asyncio.sleep(0)
    await connection.leave()
    assert not client.running


@pytest.mark.parametrize("prompt", ["ab", ["ab", "c"]])
@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 1}, {"echo": True}, {}])
async def test_choices_may_begin_in_any_order(prompt: Any, fields: dict[str, Any]) -> None:
    body = {"prompt": prompt, "n": 2, "max_tokens": 3, **fields}
    texts: list[dict[int, str]] = []
    tokens: list[dict[int, list[str]]] = []
    for kind in (FakeEngineClient, LateFirst):
        payloads = chunks(await stream("/v1/completions", body, kind("Hél", "Bye")))
        texts.append({})
        tokens.append({})
        for choice in [choice for payload in payloads for choice in payload["choices"]]:
            index = choice["index"]
            texts[-1][index] = texts[-1].get(index, "") + choice["text"]
            shown = (choice["logprobs"] or {"tokens": []})["tokens"]
            tokens[-1].setdefault(index, []).extend(shown)
    assert texts[0] == texts[1] and tokens[0] == tokens[1]
    assert len(texts[0]) == 2 * (len(prompt) if isinstance(prompt, list) else 1)
