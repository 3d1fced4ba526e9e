"""OpenAI's Responses and Anthropic's Messages against the demo model, by their own clients."""

from __future__ import annotations

import json
import time

import anthropic
import openai
import pytest

from tests.e2e.server_process import ServerProcess

QUESTION = "What is the capital of France?"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Paris"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
COUNT = "Count from one to one hundred."


def openai_client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0)


def anthropic_client(server: ServerProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="EMPTY", max_retries=0)


def until_idle(server: ServerProcess) -> None:
    deadline = time.monotonic() + 10
    while server.metric("vllm:num_requests_running"):
        assert time.monotonic() < deadline, "the request runs on"
        time.sleep(0.02)


def test_a_response_is_streamed_stored_and_continued(demo_server: ServerProcess) -> None:
    with openai_client(demo_server) as client:
        asked = {"model": "demo", "temperature": 0, "max_output_tokens": 24}
        whole = client.responses.create(**asked, input=QUESTION)
        assert "Paris" in whole.output_text
        with client.responses.stream(**asked, input=QUESTION) as stream:
            events = list(stream)
        assert events[-1].response.output_text == whole.output_text
        assert client.responses.retrieve(whole.id).output == whole.output
        chained = client.responses.create(
            **asked, input="And of Italy?", previous_response_id=whole.id
        )
        history = [{"role": "user", "content": QUESTION}, *whole.output]
        history.append({"role": "user", "content": "And of Italy?"})
        replayed = client.responses.create(**asked, input=history)
    assert chained.output_text == replayed.output_text
    assert chained.usage.input_tokens == replayed.usage.input_tokens


def test_a_response_calls_a_tool_and_fills_a_schema(demo_server: ServerProcess) -> None:
    with openai_client(demo_server) as client:
        called = client.responses.create(
            model="demo",
            input=QUESTION,
            tools=[{"type": "function", "name": "forecast", "parameters": SCHEMA}],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_output_tokens=100,
        )
        shaped = client.responses.create(
            model="demo",
            input=QUESTION,
            text={"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}},
            temperature=0,
            max_output_tokens=100,
        )
    (call,) = [item for item in called.output if item.type == "function_call"]
    for arguments in (call.arguments, shaped.output_text):
        assert set(json.loads(arguments)) == {"city", "days"}


def test_a_background_response_is_cancelled(demo_server: ServerProcess) -> None:
    with openai_client(demo_server) as client:
        queued = client.responses.create(
            model="demo", input=COUNT, background=True, extra_body={"ignore_eos": True}
        )
        assert queued.status == "queued"
        assert client.responses.cancel(queued.id).status == "cancelled"
        assert client.responses.retrieve(queued.id).status == "cancelled"
    until_idle(demo_server)


def test_a_message_is_streamed_and_counted(demo_server: ServerProcess) -> None:
    ask = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}]}
    with anthropic_client(demo_server) as client:
        greedy = {"extra_body": {"temperature": 0}}
        whole = client.messages.create(**ask, max_tokens=24, **greedy)
        assert "Paris" in whole.content[0].text
        with client.messages.stream(**ask, max_tokens=24, **greedy) as stream:
            final = stream.get_final_message()
        assert [block.text for block in final.content] == [whole.content[0].text]
        assert (final.stop_reason, final.usage.output_tokens) == (
            whole.stop_reason,
            whole.usage.output_tokens,
        )
        counted = client.messages.count_tokens(**ask)
    assert counted.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "forecast"}])
def test_a_message_calls_a_tool(demo_server: ServerProcess, choice: dict[str, str]) -> None:
    with anthropic_client(demo_server) as client:
        message = client.messages.create(
            model="demo",
            max_tokens=100,
            messages=[{"role": "user", "content": QUESTION}],
            tools=[{"name": "forecast", "input_schema": SCHEMA}],
            tool_choice={**choice, "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
        )
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert set(call.input) == {"city", "days"}
    assert message.stop_reason == "tool_use"


def test_leaving_a_message_frees_its_request(demo_server: ServerProcess) -> None:
    with anthropic_client(demo_server) as client:
        stream = client.messages.create(
            model="demo",
            max_tokens=1500,
            messages=[{"role": "user", "content": COUNT}],
            stream=True,
        )
        next(iter(stream))
        stream.close()
    until_idle(demo_server)
