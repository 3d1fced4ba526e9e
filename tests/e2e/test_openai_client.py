"""The openai package's client against the demo model: what a user's first hour touches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.server_process import ServerProcess

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = [{"role": "user", "content": "Count from one to one hundred."}]


@pytest.fixture
def client(demo_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo_server.url}/v1", api_key="EMPTY", max_retries=0) as client:
        yield client


def test_a_chat_answers(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, max_tokens=32
    )
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert 0 < reply.usage.completion_tokens <= 32
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_says_what_the_whole_reply_says(client: OpenAI) -> None:
    options = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**options)
    text, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    options = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    reply = client.chat.completions.create(**options, stop="Paris")
    (choice,) = reply.choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "Paris")
    assert "Paris" not in choice.message.content
    stream = client.chat.completions.create(**options, stop=["Paris"], stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == choice.message.content


def test_a_seed_repeats_its_choices(client: OpenAI) -> None:
    options = {"model": "demo", "messages": COUNT, "temperature": 1.2, "max_tokens": 12, "n": 2}
    first, second = (client.chat.completions.create(**options, seed=7) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert [choice.index for choice in first.choices] == [0, 1]
    assert texts[0] != texts[1]


def test_logprobs_describe_every_token(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        # Greedy: what was sampled is what was likeliest.
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert token.top_logprobs[0].bytes == token.bytes
    spelled = b"".join(bytes(token.bytes) for token in content).decode()
    assert spelled.startswith(reply.choices[0].message.content)


def test_completions_echo_and_score_their_prompt(client: OpenAI) -> None:
    reply = client.completions.create(
        model="demo", prompt="Once upon a time", max_tokens=4, temperature=0, echo=True, logprobs=1
    )
    (choice,) = reply.choices
    assert choice.text.startswith("Once upon a time")
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == reply.usage.total_tokens


def test_several_prompts_come_back_in_order(client: OpenAI) -> None:
    prompts = ["The sky is", "def add(a, b):", "Once upon a time"]
    reply = client.completions.create(
        model="demo", prompt=prompts, n=2, max_tokens=3, temperature=1, echo=True
    )
    assert [choice.index for choice in reply.choices] == list(range(6))
    for choice in reply.choices:
        assert choice.text.startswith(prompts[choice.index // 2])


def test_a_wrong_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert error.value.param == "model"


@pytest.mark.parametrize("stream", [False, True])
def test_an_over_long_prompt_is_refused_with_both_numbers(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="demo", prompt="hello " * 3000, stream=stream)
    assert "2048" in error.value.message
    assert "300" in error.value.message


def test_leaving_a_stream_frees_its_request(client: OpenAI, demo_server: ServerProcess) -> None:
    stream = client.chat.completions.create(
        model="demo",
        messages=COUNT,
        max_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _ in zip(range(3), stream, strict=False):
        pass
    stream.close()
    deadline = time.monotonic() + 2
    while demo_server.metric("vllm:num_requests_running"):
        assert time.monotonic() < deadline, "the request runs on"
        time.sleep(0.02)


def test_a_text_survives_tokenize_and_detokenize(demo_server: ServerProcess) -> None:
    text = "Grüße, 世界! 🎉"
    tokens = demo_server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]
    assert demo_server.post("/detokenize", tokens=tokens).json() == {"prompt": text}


def test_the_watching_routes_answer(client: OpenAI, demo_server: ServerProcess) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    for path in ("/health", "/ping", "/version", "/metrics"):
        assert httpx.get(demo_server.url + path).status_code == 200


CITIES = ["Rome", "Paris", "Oslo"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": CITIES},
                "days": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_forced_tool_call_follows_its_schema_and_can_be_answered(
    client: OpenAI, choice: Any
) -> None:
    question = [{"role": "user", "content": "What is the weather in Rome?"}]
    options = {"model": "demo", "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    whole = client.chat.completions.create(
        messages=question, tool_choice=choice, parallel_tool_calls=False, **options
    )
    (call,) = whole.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather" and arguments["city"] in CITIES
    assert type(arguments["days"]) is int and 1 <= arguments["days"] <= 5
    assert whole.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
    streamed = ""
    for chunk in client.chat.completions.create(
        messages=question, tool_choice=choice, parallel_tool_calls=False, stream=True, **options
    ):
        for delta in chunk.choices[0].delta.tool_calls or ():
            streamed += delta.function.arguments or ""
    assert json.loads(streamed) == arguments
    answered = [
        *question,
        whole.choices[0].message.model_dump(exclude_none=True, include={"role", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    reply = client.chat.completions.create(messages=answered, tool_choice="none", **options)
    assert reply.choices[0].message.content


def test_a_beam_search_finds_what_is_at_least_as_likely_as_greedy(client: OpenAI) -> None:
    options = {"model": "demo", "messages": QUESTION, "max_tokens": 6, "logprobs": True}
    greedy = client.chat.completions.create(**options, temperature=0)
    found = client.chat.completions.create(
        **options, n=3, extra_body={"use_beam_search": True, "length_penalty": 0}
    )
    scores = [sum(token.logprob for token in one.logprobs.content) for one in found.choices]
    best = sum(token.logprob for token in greedy.choices[0].logprobs.content)
    assert scores == sorted(scores, reverse=True) and scores[0] >= best - 1e-3
    assert len({one.message.content for one in found.choices}) == 3


def test_repeats_end_a_text_that_is_stuck(client: OpenAI) -> None:
    reply = client.completions.create(
        model="demo",
        prompt="A",
        max_tokens=100,
        temperature=0,
        logit_bias={"28": 100},
        extra_body={"repetition_detection": {"max_pattern_size": 4, "min_count": 5}},
    )
    assert reply.choices[0].finish_reason == "repetition"
    assert reply.choices[0].model_extra["stop_reason"] == "repetition_detected"
    assert reply.usage.completion_tokens <= 8
