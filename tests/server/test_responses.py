"""/v1/responses: items, streams and conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import error_of, http
from tests.server.responses import (
    GOLDEN,
    PARSERS,
    PATH,
    TOOL,
    create,
    events_of,
    said,
    settled,
    thinker,
)


@pytest.mark.parametrize(
    ("name", "client", "body", "options"),
    [
        ("responses", FakeEngineClient("Hél"), {}, {}),
        ("responses_length", FakeEngineClient("Hello"), {"max_output_tokens": 2}, {}),
        (
            "responses_logprobs",
            FakeEngineClient("Hi"),
            {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
            {},
        ),
        ("responses_tools", thinker(), {"tools": [TOOL]}, PARSERS),
    ],
)
async def test_a_stream_is_as_its_golden_file_and_as_the_whole_response(
    name: str, client: FakeEngineClient, body: dict[str, Any], options: dict[str, Any]
) -> None:
    async with http(client, **options) as session:
        sent = {"input": "hi", **body}
        streamed = await session.post(PATH, json={**sent, "stream": True})
        assert streamed.status_code == 200, streamed.text
        whole = await session.post(PATH, json=sent)
    assert settled(streamed.text) == (GOLDEN / f"{name}.sse").read_text()
    last = events_of(streamed.text)[-1]["response"]
    both = [json.loads(settled(json.dumps(one))) for one in (last, whole.json())]
    assert both[0] == both[1]


async def test_item_reference_resolves_to_an_earlier_item() -> None:
    client = FakeEngineClient("Hello")
    key, other = ({"Authorization": f"Bearer {name}"} for name in ("k", "l"))
    async with http(client, api_key=["k", "l"]) as session:
        given = {"input": [{"role": "user", "content": "hi", "id": "msg_mine"}]}
        first = (await session.post(PATH, json=given, headers=key)).json()
        items = [
            {"type": "item_reference", "id": "msg_mine"},
            {"type": "item_reference", "id": first["output"][0]["id"]},
            {"role": "user", "content": "again"},
        ]
        second = await session.post(PATH, json={"input": items}, headers=key)
        assert second.status_code == 200, second.text
        assert said(client) == "<user>hi\n<assistant>Hello\n<user>again\n<assistant>"
        foreign = await session.post(PATH, json={"input": items}, headers=other)
        assert (foreign.status_code, error_of(foreign)["param"]) == (404, "input.0.id")
        await session.delete(f"{PATH}/{first['id']}", headers=key)
        gone = await session.post(PATH, json={"input": items[1:]}, headers=key)
        # The second response has it too.
        assert gone.status_code == 200
        unknown = {"input": [{"type": "item_reference", "id": "msg_none"}]}
        missing = await session.post(PATH, json=unknown, headers=key)
        assert (missing.status_code, error_of(missing)["param"]) == (404, "input.0.id")


async def test_items_are_reasoning_message_and_call_in_order() -> None:
    async with http(thinker(), **PARSERS) as session:
        reply = (await session.post(PATH, json={"input": "hi", "tools": [TOOL]})).json()
    kinds = [(item["type"], item["status"]) for item in reply["output"]]
    assert kinds == [(k, "completed") for k in ("reasoning", "message", "function_call")]
    assert reply["output"][0]["content"][0]["text"] == "Hm."
    assert json.loads(reply["output"][2]["arguments"]) == {"city": "Rome"}
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


async def test_reasoning_is_hidden_unless_requested() -> None:
    client = thinker("<think>Hm.</think>Yes")
    async with http(client) as session:
        body = {
            "input": "hi",
            "include_reasoning": False,
            "include": ["message.output_text.logprobs"],
        }
        reply = (await session.post(PATH, json=body)).json()
    (message,) = reply["output"]
    (part,) = message["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["Y", "e", "s", "<eos>"]


async def test_a_conversation_of_items_becomes_messages() -> None:
    client = FakeEngineClient(max_model_len=512)
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hm?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
    assert (await create(client, input=items, instructions="Rules.")).status_code == 200
    assert said(client) == (
        "<system>Rules.\n<developer>Be brief.\n<user>Hm?\n<assistant>A\n<tool>42\n<assistant>"
    )


async def test_an_answer_that_broke_off_is_continued() -> None:
    client = FakeEngineClient()
    items = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}]
    items[1]["status"] = "incomplete"
    assert (await create(client, input=items)).status_code == 200
    assert said(client).endswith("<assistant>So ")
