"""Routes that lead to chat and completions by another way, and the one that shows the tokenizer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.fake_client import TEMPLATE, FakeEngineClient
from tests.server.harness import HI, Connection, app_of, chunks, error_of, http, post
from tests.server.responses import PARSERS, thinker
from tests.server.test_disconnect import until_running

BATCH = "/v1/chat/completions/batch"
TALKS = [HI, [{"role": "user", "content": "and you?"}]]


async def test_a_batch_has_a_choice_for_each_conversation() -> None:
    client = FakeEngineClient("Hello")
    reply = await post(BATCH, {"messages": TALKS, "stream": True, "return_token_ids": True}, client)
    payload = reply.json()
    prompts = [bytes(choice["prompt_token_ids"]).decode() for choice in payload["choices"]]
    assert prompts == ["<user>hi\n<assistant>", "<user>and you?\n<assistant>"]
    assert [choice["index"] for choice in payload["choices"]] == [0, 1]
    assert {choice["message"]["content"] for choice in payload["choices"]} == {"Hello"}
    assert payload["usage"]["completion_tokens"] == 12
    assert payload["usage"]["prompt_tokens"] == len("".join(prompts))
    assert [request_id[-2:] for _, _, request_id in client.seen] == ["-0", "-1"]


async def test_batch_equals_its_conversations_sent_alone() -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    client = thinker()
    async with http(client, enable_prompt_tokens_details=True, **PARSERS) as session:
        both = (await session.post(BATCH, json={"messages": TALKS, "tools": tools})).json()
        alone = [
            (
                await session.post("/v1/chat/completions", json={"messages": one, "tools": tools})
            ).json()
            for one in TALKS
        ]
    for choice, single in zip(both["choices"], alone, strict=True):
        message = single["choices"][0]["message"]
        for one in (message, choice["message"]):
            one["tool_calls"][0]["id"] = ""
        assert (choice["message"], choice["finish_reason"]) == (message, "tool_calls")
    for detail in ("prompt_tokens_details", "completion_tokens_details"):
        for name, value in both["usage"][detail].items():
            values = [single["usage"][detail][name] for single in alone]
            assert value == (None if None in values else sum(values))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": HI}, "messages.0"),
        ({"messages": [HI, []]}, "messages.1"),
        ({"messages": [HI, [{"role": "user", "content": 5}]]}, "messages.1.0.content"),
        ({"messages": TALKS, "n": 2}, "n"),
        ({"messages": TALKS, "use_beam_search": True}, "use_beam_search"),
        ({"messages": TALKS, "temperature": 3}, "temperature"),
    ],
)
async def test_a_bad_conversation_ends_the_batch(body: dict[str, Any], param: str) -> None:
    client = FakeEngineClient()
    response = await post(BATCH, body, client)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert client.seen == []


async def test_a_client_that_leaves_ends_every_conversation() -> None:
    client = FakeEngineClient()
    client.gate = asyncio.Event()
    app = app_of(client)
    connection = Connection(app, BATCH, {"messages": TALKS})
    await until_running(client, 2)
    await connection.leave()
    assert client.running == set() and len(client.aborted) == 2
    assert len(app.state.context.generations) == 0


async def test_invocations_are_routed_by_their_fields() -> None:
    chat = await post("/invocations", {"messages": HI})
    assert chat.json()["object"] == "chat.completion"
    streamed = await post("/invocations", {"messages": HI, "stream": True})
    assert chunks(streamed.text)[0]["object"] == "chat.completion.chunk"
    completion = await post("/invocations", {"prompt": "hi"})
    assert completion.json()["object"] == "text_completion"
    neither = await post("/invocations", {"inputs": "hi"})
    assert (neither.status_code, error_of(neither)["param"]) == (400, None)


async def test_the_tokenizer_is_described_where_that_is_asked_for() -> None:
    async with http() as session:
        assert (await session.get("/tokenizer_info")).status_code == 404
    async with http(enable_tokenizer_info_endpoint=True) as session:
        for _ in range(2):
            assert (await session.get("/tokenizer_info")).json()["chat_template"] == TEMPLATE
