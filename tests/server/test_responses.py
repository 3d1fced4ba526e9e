"""/v1/responses: what a response is, streamed, whole, stored, in the background."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, Connection, app_of, error_of, http
from tests.server.test_disconnect import until_running
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.engine.front.input_processor import InputProcessor
from vllm_lite.errors import EngineDeadError, QueueFullError, RequestError

GOLDEN = Path(__file__).parent / "golden"
PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THINKS = f"<think>Hm.</think>Let me look.{CALL}"
PARSERS: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


def thinker(*replies: str, max_model_len: int = 1024) -> FakeEngineClient:
    """A model that reasons, and a server that knows."""
    client = FakeEngineClient(*(replies or (THINKS,)), max_model_len=max_model_len)
    reasoning = StructuredOutputsConfig(reasoning_parser="qwen3")
    client.config = replace(client.config, structured_outputs=reasoning)
    client._inputs = InputProcessor(client.config, client.tokenizer)  # type: ignore[arg-type]
    return client


def said(client: FakeEngineClient, index: int = -1) -> str:
    """The prompt of a request, as the fake template writes it."""
    prompt = client.seen[index][0]
    assert isinstance(prompt, dict)
    return prompt["prompt"]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, their framing and numbers checked."""
    events = []
    for number, block in enumerate(text.removesuffix("\n\n").split("\n\n")):
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def settled(text: str) -> str:
    """A stream without what changes from run to run."""
    text = re.sub(r'_at":\d+', '_at":0', text)
    names: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"{match[1]}_{len(names)}")

    return re.sub(r"\b(rs|msg|fc|call|resp)_[0-9a-f]{16,32}", name, text)


async def create(client: FakeEngineClient | None = None, **body: Any) -> httpx.Response:
    async with http(client) as session:
        return await session.post(PATH, json={"input": "hi", **body})


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
    for one in both:
        one["completed_at"] = 0 if one["completed_at"] else None  # a second may end between them
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
    assert (params.seed, params.top_k, params.stop_strings) == (7, 3, ["x"])
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


# Stored responses.


async def test_a_stored_response_is_read_continued_and_deleted() -> None:
    client = FakeEngineClient("One", max_model_len=512)
    async with http(client) as session:
        first = (await session.post(PATH, json={"input": "a", "instructions": "I"})).json()
        assert (await session.get(f"{PATH}/{first['id']}")).json() == first
        body = {"input": "b", "previous_response_id": first["id"], "stream": True}
        second = events_of((await session.post(PATH, json=body)).text)[-1]["response"]
        assert said(client) == "<user>a\n<assistant>One\n<user>b\n<assistant>"
        third = {"input": "c", "previous_response_id": second["id"]}
        assert (await session.post(PATH, json=third)).status_code == 200
        assert said(client).startswith("<user>a\n<assistant>One\n<user>b\n<assistant>One\n<user>c")
        replay = await session.get(f"{PATH}/{first['id']}?stream=true")
        assert (replay.status_code, error_of(replay)["param"]) == (400, "stream")
        assert (await session.post(f"{PATH}/{first['id']}/cancel")).status_code == 400
        gone = await session.delete(f"{PATH}/{first['id']}")
        assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            missing = await session.request(method, f"{PATH}/{first['id']}")
            assert (missing.status_code, error_of(missing)["type"]) == (404, "NotFoundError")


async def test_response_with_store_false_is_not_stored() -> None:
    async with http() as session:
        reply = (await session.post(PATH, json={"input": "a", "store": False})).json()
        assert reply["store"] is False
        assert (await session.get(f"{PATH}/{reply['id']}")).status_code == 404


async def test_a_response_belongs_to_the_key_that_made_it() -> None:
    async with http(api_key=["one", "two"]) as session:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        reply = (await session.post(PATH, json={"input": "a", "user": "u"}, headers=mine)).json()
        path = f"{PATH}/{reply['id']}"
        assert (await session.get(path, headers=mine)).status_code == 200
        assert (await session.get(path, headers=other)).status_code == 404
        assert (await session.delete(path, headers=other)).status_code == 404
        chained = {"input": "b", "previous_response_id": reply["id"]}
        refused = await session.post(PATH, json=chained, headers=other)
        assert (refused.status_code, error_of(refused)["param"]) == (404, "previous_response_id")


async def test_an_id_cannot_be_taken_twice() -> None:
    async with http(headers={"X-Request-Id": "same"}) as session:
        assert (await session.post(PATH, json={"input": "a", "user": "u"})).status_code == 200
        again = await session.post(PATH, json={"input": "b", "user": "v"})
        assert (again.status_code, error_of(again)["param"]) == (400, "request_id")


@pytest.mark.parametrize(("enabled", "num_processes"), [("0", 1), ("1", 2)])
async def test_without_a_store_nothing_needs_one(
    enabled: str, num_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", enabled)
    async with http(api_server_count=num_processes) as session:
        reply = (await session.post(PATH, json={"input": "a", "store": True})).json()
        assert reply["store"] is False
        assert (await session.get(f"{PATH}/{reply['id']}")).status_code == 404
        later = {"input": "b", "previous_response_id": reply["id"]}
        assert (await session.post(PATH, json=later)).status_code == 404
        refused = await session.post(PATH, json={"input": "a", "background": True})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "background")


# In the background.


async def finished(session: httpx.AsyncClient, path: str) -> dict[str, Any]:
    while True:
        reply: dict[str, Any] = (await session.get(path)).json()
        if reply["status"] not in ("queued", "in_progress"):
            return reply
        await asyncio.sleep(0)


async def test_a_background_response_is_queued_and_can_be_waited_for() -> None:
    async with http() as session:
        reply = (await session.post(PATH, json={"input": "a", "background": True})).json()
        assert (reply["status"], reply["output"]) == ("queued", [])
        done = await finished(session, f"{PATH}/{reply['id']}")
        assert (done["status"], done["background"]) == ("completed", True)
        assert done["output"][0]["content"][0]["text"] == "Hello"
        assert (await session.post(f"{PATH}/{reply['id']}/cancel")).json() == done


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_cancelled_response_keeps_its_text_and_frees_the_request(how: str) -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    app = app_of(client)
    async with http(app=app) as session:
        reply = (await session.post(PATH, json={"input": "a", "background": True})).json()
        path = f"{PATH}/{reply['id']}"
        await until_running(client, 1)
        client.gate.set()
        while (await session.get(path)).json()["status"] == "queued":
            await asyncio.sleep(0)
        client.gate.clear()
        early = {"input": "b", "previous_response_id": reply["id"]}
        assert (await session.post(PATH, json=early)).status_code == 400
        if how == "cancel":
            ended = (await session.post(f"{path}/cancel")).json()
            assert (ended["status"], ended["output"][0]["status"]) == ("cancelled", "incomplete")
            assert (await session.get(path)).json() == ended
        else:
            assert (await session.delete(path)).json()["deleted"]
            assert (await session.get(path)).status_code == 404
    assert client.running == set() and len(client.aborted) == 1
    assert len(app.state.context.generations) == 0


async def test_a_background_stream_outlives_its_reader_and_is_replayed() -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    client.gate.set()
    app = app_of(client)
    body = {"input": "a", "background": True, "stream": True}
    connection = Connection(app, PATH, body)
    await connection.wait_bytes()
    await connection.leave()
    first = b"".join(m.get("body", b"") for m in connection.sent).decode()
    response_id = json.loads(first.split("data: ")[1].split("\n")[0])["response"]["id"]
    path = f"{PATH}/{response_id}"
    async with http(app=app) as session:
        done = await finished(session, path)
        assert client.aborted == [] and done["status"] == "completed"
        replay = (await session.get(f"{path}?stream=true")).text
        events = events_of(replay)
        kinds = [event["type"].removeprefix("response.") for event in events[:3]]
        assert kinds == ["created", "queued", "in_progress"]
        assert events[-1]["response"] == done
        assert replay.startswith(first)
        rest = (await session.get(f"{path}?stream=true&starting_after=4")).text
        assert replay.endswith(rest) and '"sequence_number":5}' in rest.split("\n\n")[0]
        for after in ("x", "-2", "²"):
            bad = await session.get(f"{path}?stream=true&starting_after={after}")
            assert (bad.status_code, error_of(bad)["param"]) == (400, "starting_after")


async def test_replay_follows_a_running_response_until_its_cancel() -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    app = app_of(client)
    async with http(app=app, headers={"X-Request-Id": "r"}) as session:
        body = {"input": "a", "background": True, "stream": True}
        readers = [asyncio.create_task(session.post(PATH, json=body))]
        await until_running(client, 1)
        readers.append(asyncio.create_task(session.get(f"{PATH}/resp_r?stream=1")))
        await asyncio.sleep(0)
        assert (await session.post(f"{PATH}/resp_r/cancel")).json()["status"] == "cancelled"
        texts = [(await reader).text for reader in readers]
    assert texts[0] == texts[1]
    last = events_of(texts[0])[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert len(client.aborted) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_response_along(stream: bool) -> None:
    client = FakeEngineClient()
    client.gate = asyncio.Event()
    app = app_of(client)
    connection = Connection(app, PATH, {"input": "a", "stream": stream, "request_id": "gone"})
    await until_running(client, 1)
    async with http(app=app) as session:
        running = await session.get(f"{PATH}/resp_gone")
        assert running.json()["status"] == "in_progress"
        await connection.leave()
        assert (await session.get(f"{PATH}/resp_gone")).status_code == 404
    assert client.running == set()
    assert len(app.state.context.generations) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "kind"), [(PATH, "responses"), ("/v1/messages", "chat")])
async def test_calls_are_counted_and_texts_logged_as_in_chat(
    path: str, kind: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**PARSERS, "enable_log_requests": True, "enable_log_outputs": True}
    function = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    body = (
        {"input": "hi", "tools": [TOOL]}
        if path == PATH
        else {"model": "tiny", "max_tokens": 500, "messages": HI, "tools": [function]}
    )
    client = thinker()
    async with http(client, **options) as session:
        headers = {"X-Vllm-Priority": "5"}
        with caplog.at_level("INFO"):
            await session.post(path, json={**body, "stream": stream}, headers=headers)
        metrics = (await session.get("/metrics")).text
    assert client.options[0]["priority"] == 5
    (line,) = [r.getMessage() for r in caplog.records if "Generated for" in r.getMessage()]
    assert CALL.splitlines()[1] in line
    mode = "streaming" if stream else "non_streaming"
    (count,) = [
        line.rsplit(" ", 1)[1]
        for line in metrics.splitlines()
        if line.startswith("vllm:tool_call_parser_invocations_total")
        and f'mode="{mode}"' in line
        and f'request_type="{kind}' in line
        and 'outcome="tool_call"' in line
    ]
    assert float(count) == 1
