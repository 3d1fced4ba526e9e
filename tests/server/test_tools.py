"""Tool calls and reasoning in chat: the same message streamed and whole, as clients read it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of, chunks, error_of, http, post
from tests.server.test_openai_client import openai_client
from tests.server.test_streams import GOLDEN, settled, stream
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import RequestError, UsageError

CHAT = "/v1/chat/completions"
AUTO: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time"}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ARGUMENTS = {"city": "Rome", "days": 2}
CALL = f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': ARGUMENTS})}\n</tool_call>"
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def engine(*replies: str, **options: Any) -> FakeEngineClient:
    return FakeEngineClient(*replies, max_model_len=1024, **options)


async def ask(client: FakeEngineClient, options: dict[str, Any], **body: Any) -> dict[str, Any]:
    """The one choice of a reply, found to be the same whole and streamed; ids are left out."""
    body = {"messages": HI, **body}
    reply = await post(CHAT, body, client, **options)
    assert reply.status_code == 200, reply.text
    (whole,) = reply.json()["choices"]
    streamed = await post(CHAT, {**body, "stream": True}, client, **options)
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for chunk in chunks(streamed.text):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["type"] == "function" and call["id"].startswith("call_")
                    assert call["index"] == len(message["calls"])
                    message["calls"].append([call["function"]["name"], ""])
                message["calls"][call["index"]][1] += call["function"]["arguments"]
            message["finish_reason"] = choice["finish_reason"]
    shown = whole["message"]
    assert shown["reasoning"] == shown["reasoning_content"]
    calls = [call["function"] for call in shown.get("tool_calls", ())]
    assert message == {
        "content": shown["content"] or "",
        "reasoning": shown["reasoning"] or "",
        "calls": [[call["name"], call["arguments"]] for call in calls],
        "finish_reason": whole["finish_reason"],
    }
    return whole


async def test_a_model_calls_a_tool_when_it_likes() -> None:
    choice = await ask(engine(f"Let me see. {CALL}"), AUTO, tools=TOOLS)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert choice["message"]["content"].strip() == "Let me see."
    assert choice["finish_reason"] == "tool_calls"


async def test_a_message_of_calls_alone_has_no_content() -> None:
    choice = await ask(engine(CALL), AUTO, tools=TOOLS, tool_choice="auto")
    assert choice["message"]["content"] is None


@pytest.mark.parametrize(("parallel", "count"), [(None, 2), (True, 2), (False, 1)])
async def test_parallel_calls_can_be_turned_off(parallel: bool | None, count: int) -> None:
    client = engine(f"{CALL}\n{TIME}")
    choice = await ask(client, AUTO, tools=TOOLS, parallel_tool_calls=parallel)
    assert len(choice["message"]["tool_calls"]) == count


async def test_text_without_calls_is_content() -> None:
    choice = await ask(engine("Just words < and > more."), AUTO, tools=TOOLS)
    assert choice["message"]["content"] == "Just words < and > more."
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


async def test_a_call_that_was_cut_off_finishes_for_its_length() -> None:
    choice = await ask(engine(CALL), AUTO, tools=TOOLS, max_tokens=len(CALL) - 25)
    assert choice["finish_reason"] == "length"


async def test_with_none_calls_stay_text_and_tools_may_be_hidden() -> None:
    for hidden, shown in ((False, "[2 tools]"), (True, "")):
        client = engine(CALL)
        options = {**AUTO, "exclude_tools_when_tool_choice_none": hidden}
        choice = await ask(client, options, tools=TOOLS, tool_choice="none")
        assert choice["message"]["content"] == CALL
        assert client.seen[0][0]["prompt"] == f"<user>hi\n{shown}<assistant>"


def forced(tool_choice: Any, *calls: tuple[str, Any]) -> str:
    """The text of a model without a format of its own under a forced choice."""
    if tool_choice == "required":
        return json.dumps([{"name": name, "parameters": given} for name, given in calls])
    return json.dumps(calls[0][1])


@pytest.mark.parametrize(("tool_choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_forced_call_needs_no_parser_and_follows_the_schema(
    tool_choice: Any, reason: str
) -> None:
    client = engine(forced(tool_choice, ("get_weather", ARGUMENTS)))
    choice = await ask(client, {}, tools=TOOLS, tool_choice=tool_choice)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert choice["finish_reason"] == reason
    for constraint in client.prepared:
        assert '"city"' in json.dumps(constraint.json)
    assert all(params.structured_outputs is not None for _, params, _ in client.seen)


async def test_a_forced_call_in_a_models_own_format_is_constrained_to_it() -> None:
    client = engine(CALL)
    choice = await ask(client, AUTO, tools=TOOLS, tool_choice="required")
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert "city" in str(client.prepared[0])


async def test_a_forced_call_goes_before_a_response_format() -> None:
    client = engine(forced("required", ("get_time", {})))
    body = {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}
    await ask(client, {}, **body)
    assert client.prepared[0].json_object is None


def allowed(mode: str, *names: str) -> dict[str, Any]:
    listed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}


async def test_a_choice_may_narrow_the_tools_that_the_prompt_shows() -> None:
    client = engine(forced("required", ("get_time", {})))
    choice = await ask(client, {}, tools=TOOLS, tool_choice=allowed("required", "get_time"))
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_time"
    assert "get_weather" not in json.dumps(client.prepared[0].json)
    assert "[2 tools]" in client.seen[0][0]["prompt"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": TOOLS, "tool_choice": allowed("auto", "get_time")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("required", "nope")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("required")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("none", "get_time")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": TOOLS}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools.0.function.parameters",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_tools_that_cannot_be_honoured_are_refused(
    body: dict[str, Any], param: str, stream: bool
) -> None:
    client = engine("x")
    response = await post(CHAT, {"messages": HI, "stream": stream, **body}, client)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert client.seen == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_constraint_that_does_not_compile_is_refused_before_the_headers(
    body: dict[str, Any], param: str, stream: bool
) -> None:
    client = engine("x")
    client.constraint_refusal = RequestError("structured_outputs: no", "structured_outputs")
    response = await post(CHAT, {"messages": HI, "stream": stream, **body}, client)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert client.seen == []


async def test_calls_of_the_past_reach_the_template_as_objects() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}"
        "{{ m.content }}{{ m.tool_call_id or '' }}\n{% endfor %}"
    )
    client = engine("ok")
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    await ask(client, {"chat_template": template}, messages=messages)
    prompt = client.seen[0][0]["prompt"]
    assert prompt == "<user>hi\n<assistant>get_weather(Rome)\n<tool>sunnycall_1\n"


THOUGHT = "<think>\nWhy not?\n</think>\n\nYes."


async def test_reasoning_is_split_from_content() -> None:
    client = engine(THOUGHT, reasoning_parser="deepseek_r1")
    choice = await ask(client, {})
    assert choice["message"]["reasoning"].strip() == "Why not?"
    assert choice["message"]["content"].strip() == "Yes."
    reply = (await post(CHAT, {"messages": HI}, client)).json()
    details = reply["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(choice["message"]["reasoning"])}
    body = {"messages": HI, "stream": True, "stream_options": {"include_usage": True}}
    last = chunks((await post(CHAT, body, client)).text)[-1]
    assert last["usage"]["completion_tokens_details"] == details


async def test_reasoning_can_be_left_out_and_its_tokens_with_it() -> None:
    client = engine(THOUGHT, reasoning_parser="deepseek_r1")
    body = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    choice = await ask(client, {}, **body)
    assert choice["message"]["reasoning"] is None
    assert choice["message"]["content"].strip() == "Yes."
    assert choice["logprobs"] is None and choice["token_ids"] is None
    reply = (await post(CHAT, {"messages": HI, **body}, client)).json()
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    streamed = await post(CHAT, {"messages": HI, "stream": True, **body}, client)
    assert "Why" not in streamed.text and '"token":' not in streamed.text


async def test_a_call_may_come_after_reasoning() -> None:
    client = engine(f"<think>Hm.</think>{CALL}", reasoning_parser="deepseek_r1")
    choice = await ask(client, AUTO, tools=TOOLS)
    assert choice["message"]["reasoning"] == "Hm."
    assert len(choice["message"]["tool_calls"]) == 1


async def test_every_token_is_shown_where_tokens_are_asked_for() -> None:
    client = engine(f"Hm {CALL}", reasoning_parser="deepseek_r1")
    body = {"messages": HI, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
    whole = (await post(CHAT, body, client, **AUTO)).json()["choices"][0]
    streamed = await post(CHAT, {**body, "stream": True}, client, **AUTO)
    told = [choice for chunk in chunks(streamed.text) for choice in chunk["choices"]]
    ids = [i for choice in told for i in choice.get("token_ids") or ()]
    logprobs = [e for choice in told if choice["logprobs"] for e in choice["logprobs"]["content"]]
    assert ids == whole["token_ids"] and logprobs == whole["logprobs"]["content"]


@pytest.mark.parametrize("effort", ["none", "high"])
async def test_the_effort_and_the_servers_variables_reach_the_template(effort: str) -> None:
    options: dict[str, Any] = {
        "chat_template": "{{ enable_thinking }} {{ reasoning_effort }} {{ a }}{{ b }}",
        "default_chat_template_kwargs": {"a": 1, "b": 2},
    }
    client = engine("x")
    body = {"messages": HI, "reasoning_effort": effort, "chat_template_kwargs": {"b": 3}}
    await post(CHAT, body, client, **options)
    assert client.seen[0][0]["prompt"] == f"{effort != 'none'} {effort} 13"


async def test_the_openai_client_reads_streamed_calls() -> None:
    async with (
        openai_client(engine(f"{CALL}{TIME}"), **AUTO) as client,
        client.chat.completions.stream(model="tiny", messages=HI, tools=TOOLS) as events,
    ):
        final = await events.get_final_completion()
    (choice,) = final.choices
    names = [call.function.name for call in choice.message.tool_calls]
    assert names == ["get_weather", "get_time"]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == ARGUMENTS


@pytest.mark.parametrize(
    ("name", "reply", "options", "body"),
    [
        ("chat_tools", f"On it.{TIME}", AUTO, {"tools": TOOLS}),
        ("chat_reasoning", "<think>a</think>b", {}, {"stream_options": {"include_usage": True}}),
    ],
)
async def test_a_stream_is_as_its_golden_file(
    name: str, reply: str, options: dict[str, Any], body: dict[str, Any]
) -> None:
    client = engine(reply, reasoning_parser="deepseek_r1" if "reasoning" in name else "")
    text = await stream(CHAT, {"messages": HI, **body}, client, **options)
    settled_text = re.sub(r"call_[0-9a-f]{24}", "CALL_ID", settled(text))
    assert settled_text == (GOLDEN / f"{name}.sse").read_text()


async def test_the_metrics_count_what_the_tool_parser_found() -> None:
    client = engine(CALL, "no")
    body = {"messages": HI, "tools": TOOLS, "n": 2}
    async with http(client, **AUTO) as session:
        await session.post(CHAT, json=body)
        await session.post(CHAT, json={**body, "stream": True})
        text = (await session.get("/metrics")).text
    for mode in ("streaming", "non_streaming"):
        for outcome in ("tool_call", "no_tool_call"):
            (line,) = [
                line
                for line in text.splitlines()
                if line.startswith("vllm:tool_call_parser_invocations_total")
                and f'mode="{mode}"' in line
                and f'outcome="{outcome}"' in line
                and 'request_type="chat_completions"' in line
            ]
            assert line.endswith(" 1.0"), line


def test_parsers_that_are_not_there_are_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="--enable-auto-tool-choice needs --tool-call-parser"):
        ServerConfig(enable_auto_tool_choice=True)
    with pytest.raises(UsageError, match="--tool-call-parser nope"):
        app_of(engine(), tool_call_parser="nope")
    with pytest.raises(UsageError, match="--reasoning-parser nope"):
        app_of(engine(reasoning_parser="nope"))


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_auto_tools_need_a_template_that_shows_them(path: str) -> None:
    blind = engine(CALL)
    blind.tokenizer.chat_templates["default"] = "{{ messages[0].content }}"
    body: dict[str, Any] = {"messages": HI, "input": "hi", "tools": TOOLS, "max_tokens": 8}
    if path != CHAT:
        body["tools"] = [{"type": "function", "name": "f", "input_schema": {}, "parameters": {}}]
    if path == "/v1/messages":
        body["tools"] = [{"name": "f", "input_schema": {"type": "object"}}]
        body["model"] = blind.config.model.served_model_name[0]
    reply = await post(path, body, blind, **AUTO)
    assert reply.status_code == 400
    assert "the chat template shows the model no tools" in error_of(reply)["message"]
    seen = {**AUTO, "chat_template": "{{ tools | tojson }}"}
    assert (await post(path, body, blind, **seen)).status_code == 200


@pytest.mark.parametrize("template", ["{{ messages }}", "{{ tools }}"])
async def test_one_warning_at_start_where_the_template_shows_no_tools(
    template: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = engine()
    client.tokenizer.chat_templates["default"] = template
    with caplog.at_level("WARNING"):
        app_of(client, **AUTO).state.context.start()
    is_blind = "tools" not in template
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "--enable-auto-tool-choice has no effect"
    ] * is_blind


async def test_a_variable_that_the_models_template_does_not_know_is_refused() -> None:
    options = {**AUTO, "tool_call_parser": "k2_horizon"}
    for argument, choices in (
        ("reasoning_effort", "high, medium, low"),
        ("tool_call_format", "xml, xml_typed, json"),
    ):
        body = {"messages": HI, "tools": TOOLS, "chat_template_kwargs": {argument: "other"}}
        reply = await post(CHAT, body, engine("x"), **options)
        assert reply.status_code == 400
        assert f"chat_template_kwargs.{argument} must be one of {choices}" in reply.text
        body["chat_template_kwargs"] = {argument: choices.rpartition(" ")[2]}
        assert (await post(CHAT, body, engine("x"), **options)).status_code == 200


@pytest.mark.parametrize("route", [CHAT, "/v1/responses", "/v1/messages"])
async def test_nothing_is_shown_of_a_second_call_that_is_cut(route: str) -> None:
    body: dict[str, Any] = {"messages": HI, "tools": TOOLS, "max_tokens": 500}
    if route == "/v1/responses":
        flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
        body = {"input": "Hi", "tools": flat}
    elif route == "/v1/messages":
        named = [tool["function"] for tool in TOOLS]
        body["model"] = "tiny"
        body["tools"] = [{"name": t["name"], "input_schema": SCHEMA} for t in named]  # type: ignore[index]
    for end in (1, 11, 12, 30, len(CALL) - len("</tool_call>") - 40):
        reply = await post(route, body, engine(CALL + CALL[:end]), **AUTO)
        assert reply.status_code == 200, reply.text
        for mark in ("<tool_", "tool_call>", "<t", '"<', '\\"name'):
            assert mark not in reply.text, (mark, reply.text)


async def test_arguments_that_the_model_has_left_open_are_whole_json() -> None:
    text = CALL[: CALL.index(', "days"')]
    choice = await ask(engine(text), AUTO, tools=TOOLS)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    assert choice["finish_reason"] == "stop"
    cut = await ask(engine(text), AUTO, tools=TOOLS, max_tokens=len(text) - 1)
    (call,) = cut["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "Rome'
    assert cut["finish_reason"] == "length"
