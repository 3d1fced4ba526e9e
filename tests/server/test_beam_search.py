"""use_beam_search over the API: its choices, its streams, and what does not go with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, Connection, app_of, chat, chunks, complete, error_of
from vllm_lite.errors import QueueFullError

SEARCH: dict[str, Any] = {"use_beam_search": True, "n": 2, "max_tokens": 3}


async def test_choices_are_the_best_continuations() -> None:
    client = FakeEngineClient("A")
    reply = (await chat(client, **SEARCH, logprobs=True, top_logprobs=1, temperature=0)).json()
    choices = reply["choices"]
    # The engine in miniature finds "A" likeliest and "B" next, whatever came before.
    assert [choice["message"]["content"] for choice in choices] == ["AAA", "AAB"]
    assert [choice["finish_reason"] for choice in choices] == ["length", "length"]
    assert choices[1]["logprobs"]["content"][2]["token"] == "B"
    assert reply["usage"]["completion_tokens"] == 6
    first, *later = client.seen
    assert first[0]["prompt_token_ids"] == list(b"<user>hi\n<assistant>")
    assert [prompt[-1:] for prompt, _, _ in later[:2]] == [[65], [66]]
    assert all(params.max_tokens == 1 and params.logprobs == 4 for _, params, _ in client.seen)


async def test_completions_search_after_every_prompt() -> None:
    client = FakeEngineClient("A")
    reply = (await complete(client, prompt=["x", [121]], **SEARCH, echo=True, logprobs=None)).json()
    texts = [(choice["index"], choice["text"]) for choice in reply["choices"]]
    assert texts == [(0, "xAAA"), (1, "xAAB"), (2, "yAAA"), (3, "yAAB")]


async def test_a_streamed_search_gives_each_beam_as_one_chunk() -> None:
    response = await chat(FakeEngineClient("A"), **SEARCH, stream=True)
    told = [choice for chunk in chunks(response.text) for choice in chunk["choices"]]
    texts = [choice["delta"]["content"] for choice in told if choice["finish_reason"]]
    assert texts == ["AAA", "AAB"]


async def test_a_client_that_leaves_ends_its_search() -> None:
    class Slow(FakeEngineClient):
        def generate(self, prompt: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(prompt, list):  # the second step; the first has the prompt's text
                self.gate = asyncio.Event()
            return super().generate(prompt, *rest, **options)

    client = Slow("A")
    body = {"messages": HI, **SEARCH}
    connection = Connection(app_of(client), "/v1/chat/completions", body)
    while len(client.seen) < 3 or not client.running:
        await asyncio.sleep(0)
    await connection.leave()
    assert client.running == set()


@pytest.mark.parametrize("send", [chat, complete])
async def test_a_search_that_was_let_in_is_one_request_to_its_end(send: Any) -> None:
    class Filling(FakeEngineClient):
        """Full from the moment that it has a request."""

        def generate(self, *given: Any, **options: Any) -> Any:
            begun = super().generate(*given, **options)
            self.refusal = QueueFullError("too much waits")
            return begun

    client = Filling("A")
    reply = await send(client, **SEARCH, user="me")
    assert reply.status_code == 200 and len(client.seen) == 5
    assert {origin.tenant for origin in client.origins} == {client.origins[0].tenant}
    assert (await send(client, **SEARCH)).status_code == 429


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 11}, "n"),
        ({"n": 0}, "n"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"stop": "x"}, "stop"),
        ({"logit_bias": {"65": 1}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}}, "use_beam_search"),
    ],
)
async def test_beam_search_refuses_fields_that_it_would_ignore(
    fields: dict[str, Any], param: str
) -> None:
    for send in (chat, complete):
        client = FakeEngineClient()
        response = await send(client, **{**SEARCH, **fields})
        assert (response.status_code, error_of(response)["param"]) == (400, param)
        assert client.seen == []


async def test_completions_do_not_stream_a_search() -> None:
    response = await complete(**SEARCH, stream=True)
    assert (response.status_code, error_of(response)["param"]) == (400, "stream")
