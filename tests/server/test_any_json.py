"""Whatever JSON can carry is answered or refused, on its way in and as a model writes it.

Texts that are JSON themselves, such as the arguments of a call, may hold half of a surrogate pair,
numbers without end, or no JSON at all.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.server.fake_client import ByteTokenizer, FakeEngineClient
from tests.server.harness import HI, http

TEMPLATE = "{{ [messages, tools, documents, x | default(1)] | tojson }}"
PARSERS: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
CHARACTERS = st.sampled_from('ab"\\{}é\u2028\U0001f600\ud800\udfff\x00')
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(2**63) - 1, 1e300, 5.0, -0.0])
    | st.text(CHARACTERS, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=3), inner)
    ),
    max_leaves=6,
)
# JSON as a text: whole, cut off, or none.
TEXTS = st.builds(
    lambda value, cut: json.dumps(value)[: cut or None], VALUES, st.sampled_from([0, 0, -1, 3])
)
# What a body cannot hold but by its own escapes: there it would be refused, and nothing seen.
CLEAN = VALUES.map(lambda value: json.loads(json.dumps(value).replace("\\ud", "\\u0")))


async def ask(client: FakeEngineClient, path: str, body: dict[str, Any]) -> httpx.Response:
    """One request, as a reply and as a stream; it may be refused, but not fail."""
    async with http(client, **PARSERS) as session:
        for stream in (True, False):
            reply = await session.post(path, json={**body, "stream": stream})
            assert reply.status_code in (200, 400), f"{reply.text} for {path} {body}"
            assert "InternalServerError" not in reply.text, f"{reply.text} for {path} {body}"
        if path == "/v1/responses" and reply.status_code == 200:
            again = {"input": "and?", "previous_response_id": reply.json()["id"]}
            later = await session.post(path, json=again)
            assert later.status_code == 200, later.text
    return reply


def engine(reply: str) -> FakeEngineClient:
    client = FakeEngineClient(reply, max_model_len=1024)
    client.tokenizer = ByteTokenizer(TEMPLATE)
    return client


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(CLEAN, TEXTS, CLEAN, CLEAN)
def test_what_clients_send(name: Any, text: str, value: Any, other: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": text}}
    unusual = {"id": "c", "function": {"name": "f", "arguments": value}}
    schema = {"type": "object", "x": value}
    function = {"name": "f", "description": "d", "parameters": schema}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}
    output = {"type": "function_call_output", "call_id": "c", "output": text}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": value}
    result = {"role": "tool", "tool_call_id": "c", "content": text}
    turns = [*HI, {"role": "assistant", "tool_calls": [call, unusual]}, result]
    extra = {"chat_template_kwargs": {"x": value}, "temperature": 0}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": turns, "documents": [{"x": other}]}),
        (
            "/v1/chat/completions",
            {"messages": HI, "tools": [{"type": "function", "function": function}], **extra},
        ),
        ("/v1/completions", {"prompt": "hi", "structured_outputs": {"json": text}}),
        (
            "/v1/responses",
            {
                "input": [*HI, item, {**item, "arguments": value}, output],
                "tools": [{"type": "function", **function}],
                **extra,
            },
        ),
        (
            "/v1/messages",
            {
                "model": "tiny",
                "max_tokens": 9,
                "messages": [*HI, {"role": "assistant", "content": [block]}],
                "tools": [{"name": "f", "input_schema": {"x": other}}],
            },
        ),
    ]

    async def send() -> None:
        for path, body in bodies:
            await ask(engine("ok"), path, body)

    asyncio.run(send())


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(TEXTS, TEXTS)
def test_what_models_write(name: str, arguments: str) -> None:
    text = f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
    tool = {"name": "f", "parameters": {"type": "object"}}

    async def send() -> None:
        for path, body in (
            (
                "/v1/chat/completions",
                {"messages": HI, "tools": [{"type": "function", "function": tool}]},
            ),
            ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **tool}]}),
            (
                "/v1/messages",
                {"model": "tiny", "max_tokens": 999, "messages": HI, "tools": [{"name": "f"}]},
            ),
        ):
            reply = await ask(engine(text), path, body)
            assert reply.status_code == 200, reply.text

    asyncio.run(send())


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": 1, "b', "", "nul", "[1]"])
async def test_a_call_that_came_back_goes_in_again(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    reply = await ask(
        engine("ok"),
        "/v1/chat/completions",
        {"messages": [*HI, {"role": "assistant", "tool_calls": [call]}]},
    )
    assert reply.status_code == 200, reply.text
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    for given_item in (item, {**item, "arguments": None}, {**item, "arguments": [1]}):
        reply = await ask(engine("ok"), "/v1/responses", {"input": [*HI, given_item]})
        assert reply.status_code == 200, reply.text
