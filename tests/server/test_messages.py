"""/v1/messages: Anthropic's shape of a conversation, of a reply and of its stream."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.fake_client import ByteTokenizer, FakeEngineClient
from tests.server.harness import HI, Connection, app_of, error_of, http
from tests.server.responses import PARSERS, said, thinker
from tests.server.test_disconnect import until_running
from vllm_lite.errors import EngineDeadError, QueueFullError

GOLDEN = Path(__file__).parent / "golden"
PATH = "/v1/messages"
TOOL = {"name": "get_weather", "input_schema": {"properties": {"city": {"type": "string"}}}}
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 100, "messages": HI}


async def create(
    client: FakeEngineClient | None = None, options: dict[str, Any] | None = None, **body: Any
) -> httpx.Response:
    async with http(client, **(options or {})) as session:
        return await session.post(PATH, json={**BODY, **body})


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, their framing checked."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    return events


def settled(text: str) -> str:
    """A stream without what changes from run to run."""
    text = re.sub(r'"signature":"[0-9a-f]{32}"', '"signature":"S"', text)
    return re.sub(r"\b(msg|call)_[0-9a-f]{16,32}", r"\1_0", text)


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the events."""
    message: dict[str, Any] = {}
    texts: list[str] = []
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                texts = []
            case "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "signature_delta":
                    message["content"][-1]["signature"] = delta["signature"]
                else:
                    texts.append(
                        delta[
                            {"input_json_delta": "partial_json"}.get(
                                delta["type"], delta["type"].removesuffix("_delta")
                            )
                        ]
                    )
            case "content_block_stop":
                block, text = message["content"][-1], "".join(texts)
                assert event["index"] == len(message["content"]) - 1
                if block["type"] == "tool_use":
                    block["input"] = json.loads(text or "{}")
                else:
                    block[block["type"]] = text
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert events[-1] == {"type": "message_stop"}
    return message


@pytest.mark.parametrize(
    ("name", "client", "body", "options"),
    [
        ("messages", FakeEngineClient("Hél"), {}, {}),
        ("messages_stop", FakeEngineClient("Hello"), {"stop_sequences": ["ll"]}, {}),
        ("messages_length", FakeEngineClient("Hello"), {"max_tokens": 2}, {}),
        ("messages_empty", FakeEngineClient(""), {}, {"enable_prompt_tokens_details": True}),
        ("messages_tools", thinker(), {"tools": [TOOL], "max_tokens": 200}, PARSERS),
    ],
)
async def test_a_stream_is_as_its_golden_file_and_as_the_whole_message(
    name: str, client: FakeEngineClient, body: dict[str, Any], options: dict[str, Any]
) -> None:
    streamed = await create(client, options, **body, stream=True)
    assert settled(streamed.text) == (GOLDEN / f"{name}.sse").read_text()
    whole = await create(client, options, **body)
    assert joined(events_of(settled(streamed.text))) == json.loads(settled(whole.text))


async def test_thinking_text_and_calls_are_blocks_in_order() -> None:
    reply = (await create(thinker(), PARSERS, tools=[TOOL], max_tokens=200)).json()
    thinking, text, call = reply["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Let me look."}
    assert (call["name"], call["input"]) == ("get_weather", {"city": "Rome"})
    assert (reply["stop_reason"], reply["id"][:4]) == ("tool_use", "msg_")


async def test_a_call_that_broke_off_keeps_its_arguments_in_both_modes() -> None:
    body = {"tools": [TOOL], "max_tokens": 91}
    reply = (await create(thinker(), PARSERS, **body)).json()
    streamed = events_of((await create(thinker(), PARSERS, **body, stream=True)).text)
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    sent = "".join(delta.get("partial_json", "") for delta in deltas)
    assert sent == '{"city": "Ro'
    assert reply["content"][-1]["input"] == {"city": "Ro"}
    assert reply["stop_reason"] == streamed[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_a_conversation_of_blocks_becomes_messages() -> None:
    client = FakeEngineClient(max_model_len=512)
    billing = {"type": "text", "text": "x-anthropic-billing-header: 17"}
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_result", "tool_use_id": "t", "content": [
                    {"type": "text", "text": "sun"}, {"type": "text", "text": "wind"}]},
            ],
        },
        {"role": "system", "content": "Hurry."},
    ]  # fmt: skip
    system = [billing, {"type": "text", "text": "Be nice."}]
    assert (await create(client, messages=messages, system=system)).status_code == 200
    assert said(client) == (
        "<system>Be nice.\n<user>Weather?\n<assistant>Looking.\n<tool>sun\nwind\n<user>And?\n"
        "<system>Hurry.\n<assistant>"
    )


async def test_a_template_that_wants_one_system_message_gets_one() -> None:
    messages = [*HI, {"role": "system", "content": "B"}, *HI]
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('system first') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    for template, expected in (
        (strict, "<system>A\nB<user>hi<user>hi"),
        (strict.replace("raise_exception", ""), "<system>A<user>hi<system>B<user>hi"),
    ):
        client = FakeEngineClient()
        client.tokenizer = ByteTokenizer(template.replace("{{ ('system first') }}", ""))
        assert (await create(client, system="A", messages=messages)).status_code == 200
        assert said(client) == expected


async def test_fields_reach_the_engine() -> None:
    client = FakeEngineClient()
    shape = {"type": "json_schema", "schema": {"type": "object"}}
    reply = await create(
        client,
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        stop_sequences=["a"],
        output_config={"effort": "low", "format": shape},
        metadata={"user_id": "me"},
    )
    assert reply.status_code == 200, reply.text
    params = client.seen[0][1]
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 0.5)
    assert (params.stop, params.max_tokens) == (["a"], 100)
    assert params.structured_outputs is not None
    assert params.structured_outputs.json == {"type": "object"}
    assert client.origins[0].tenant


@pytest.mark.parametrize(
    ("choice", "is_constrained"),
    [("any", True), ("tool", True), ("auto", False), ("none", False)],
)
async def test_tool_choice_is_honoured(choice: str, is_constrained: bool) -> None:
    client = thinker()
    asked = {"type": choice, "disable_parallel_tool_use": True}
    if choice == "tool":
        asked["name"] = "get_weather"
    reply = await create(client, PARSERS, tools=[TOOL], tool_choice=asked)
    assert reply.status_code == 200, reply.text
    assert (client.seen[0][1].structured_outputs is not None) is is_constrained


@pytest.mark.parametrize(
    ("thinking", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, 1024),
        ({"type": "adaptive"}, None),
        ({"type": "disabled"}, None),
    ],
)
async def test_thinking_is_a_budget(
    thinking: dict[str, Any], budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    client = thinker(max_model_len=2048)
    reply = await create(client, max_tokens=1025, thinking=thinking)
    assert reply.status_code == 200, reply.text
    assert client.seen[0][1].thinking_token_budget == budget
    plain = FakeEngineClient(max_model_len=2048)
    assert (await create(plain, max_tokens=1025, thinking=thinking)).status_code == 200
    assert plain.seen[0][1].thinking_token_budget is None


async def test_a_message_starts_with_all_of_its_input_and_ends_with_what_was_new() -> None:
    client, options = FakeEngineClient(), {"enable_prompt_tokens_details": True}
    turns = [{"role": "user", "content": "as long as a block of the cache"}]
    start, *_, end, _ = events_of((await create(client, options, messages=turns, stream=True)).text)
    whole = (await create(client, options, messages=turns)).json()["usage"]
    begun = start["message"]["usage"]["input_tokens"]
    assert begun == whole["input_tokens"] + whole["cache_read_input_tokens"]
    assert whole["cache_read_input_tokens"] and end["usage"] == whole


@pytest.mark.parametrize("given", [{}, {"input": None}, {"input": {}}])
async def test_a_tool_use_that_broke_off_can_be_sent_back(given: dict[str, Any]) -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", **given}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    ]
    assert (await create(messages=turns)).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1000}, "max_tokens"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages.0.content.0.tool_use_id"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"temperature": 3}, "temperature"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "thinking.budget_tokens"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)  # fmt: skip
async def test_a_bad_request_names_its_own_field(body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        response = await create(**{**body, "stream": stream})
        assert response.status_code == 400, response.text
        assert error_of(response)["param"] == param
        assert response.json()["type"] == "error"


async def test_other_refusals_have_the_same_shape() -> None:
    client = FakeEngineClient()
    unknown = await create(client, model="claude")
    assert (unknown.status_code, error_of(unknown)["type"]) == (404, "NotFoundError")
    client.refusal = QueueFullError("full", 3)
    full = await create(client, stream=True)
    assert (full.status_code, full.headers["retry-after"]) == (429, "3")
    assert error_of(full)["param"] is None


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    client = FakeEngineClient("Hello")
    client.failure, client.fail_after = EngineDeadError("killed by signal 9"), 2
    last = events_of((await create(client, stream=True)).text)[-1]
    assert (last["type"], last["error"]["code"]) == ("error", 500)
    assert (await create(client)).status_code == 500


@pytest.mark.parametrize("stream", [False, True])
async def test_message_ended_by_the_server_is_an_error(stream: bool) -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    app = app_of(client)
    async with http(app=app) as session:
        asked = asyncio.create_task(session.post(PATH, json={**BODY, "stream": stream}))
        await until_running(client, 1)
        await app.state.context.generations.abort()
        response = await asked
    error = events_of(response.text)[-1]["error"] if stream else error_of(response)
    assert (error["type"], error["code"]) == ("ServiceUnavailableError", 503)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_message_along(stream: bool) -> None:
    client = FakeEngineClient()
    client.gate = asyncio.Event()
    app = app_of(client)
    connection = Connection(app, PATH, {**BODY, "stream": stream})
    await until_running(client, 1)
    await connection.leave()
    assert client.running == set()
    assert len(app.state.context.generations) == 0


async def test_tokens_are_counted_as_they_will_be_used() -> None:
    client = thinker()
    body = {"model": "tiny", "messages": HI, "tools": [TOOL], "system": "S", "max_tokens": 9}
    async with http(client, **PARSERS) as session:
        counted = (await session.post(f"{PATH}/count_tokens", json=body)).json()
        used = (await session.post(PATH, json=body)).json()
    assert counted["input_tokens"] == used["usage"]["input_tokens"]
