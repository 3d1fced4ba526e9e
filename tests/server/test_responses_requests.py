"""/v1/responses: fields of a request, and what is refused or fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import error_of, http
from tests.server.responses import PARSERS, PATH, TOOL, create, events_of, said, thinker
from vllm_lite.errors import EngineDeadError, QueueFullError, RequestError


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference"}]}, "input.0.id"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0.type"),
        ({"input": [{"role": 5, "content": "x"}]}, "input.0.role"),
        ({"input": "x" * 200_000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": [TOOL]}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.json_schema"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
         "structured_outputs"),
        ({"include": ["everything"]}, "include.0"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"k": 5}}, "metadata"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)  # fmt: skip
async def test_a_bad_request_names_its_own_field(body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        response = await create(stream=stream, **body)
        assert response.status_code == (404 if "previous" in param else 400), response.text
        assert error_of(response)["param"] == param


async def test_fields_reach_the_engine() -> None:
    client = FakeEngineClient()
    schema = {"type": "object"}
    body = {
        "seed": 7,
        "top_k": 3,
        "stop": ["x"],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        "cache_salt": "salt",
        "priority": 2,
        "truncation": "auto",
        "user": "me",
        "metadata": {"a": "b"},
    }
    reply = (await create(client, **body)).json()
    _, params, request_id = client.seen[0]
    assert (params.seed, params.top_k, params.stop) == (7, 3, ["x"])
    assert params.structured_outputs is not None and params.structured_outputs.json == schema
    assert params.truncate_prompt_tokens == -1
    assert client.options[0] == {"cache_salt": "salt", "priority": 2}
    assert (reply["id"], reply["metadata"]) == (request_id, {"a": "b"})
    assert client.origins[0].tenant


async def test_only_allowed_tools_may_be_called() -> None:
    client = thinker()
    other = {**TOOL, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "other"}]}
    async with http(client, **PARSERS) as session:
        body = {"input": "hi", "tools": [TOOL, other], "tool_choice": choice}
        assert (await session.post(PATH, json=body)).status_code == 200
    assert "[1 tools]" in said(client)
    assert client.prepared


async def test_messages_and_tokens_are_shown_where_asked_for() -> None:
    reply = (await create(enable_response_messages=True)).json()
    (given,), (made,) = reply["input_messages"], reply["output_messages"]
    assert bytes(given["tokens"]).decode() == given["message"] == "<user>hi\n<assistant>"
    assert (made["message"], len(made["tokens"])) == ("Hello", 6)


async def test_a_grammar_that_is_refused_is_a_400_before_the_stream() -> None:
    client = FakeEngineClient()
    client.constraint_refusal = RequestError("no", "structured_outputs.json")
    shape = {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    response = await create(client, stream=True, text=shape)
    assert (response.status_code, error_of(response)["param"]) == (400, "text.format")


@pytest.mark.parametrize("background", [False, True])
async def test_a_full_queue_is_an_http_status_and_stores_nothing(background: bool) -> None:
    client = FakeEngineClient()
    client.refusal = QueueFullError("full", 3)
    async with http(client, headers={"X-Request-Id": "a"}) as session:
        body = {"input": "hi", "stream": True, "background": background}
        assert (await session.post(PATH, json=body)).status_code == 429
        assert (await session.get(f"{PATH}/resp_a")).status_code == 404


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    client = FakeEngineClient("Hello")
    client.failure, client.fail_after = EngineDeadError("killed by signal 9"), 2
    last = events_of((await create(client, stream=True)).text)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "signal 9" not in json.dumps(last)
    assert last["response"]["output"][0]["content"][0]["text"] == "He"
    whole = await create(client)
    assert whole.status_code == 500
