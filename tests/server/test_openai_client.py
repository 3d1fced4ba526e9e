"""The openai package's own client, over the application."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of


def openai_client(client: FakeEngineClient | None = None, **options: Any) -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(app_of(client or FakeEngineClient("Hello", "Bye"), **options))
    return openai.AsyncOpenAI(
        api_key="none",
        base_url="http://server/v1",
        http_client=httpx.AsyncClient(transport=transport),
        max_retries=0,
    )


async def test_chat_with_choices_and_logprobs() -> None:
    async with openai_client() as client:
        reply = await client.chat.completions.create(
            model="tiny", messages=HI, n=2, logprobs=True, top_logprobs=2, seed=1
        )
    assert [choice.message.content for choice in reply.choices] == ["Hello", "Bye"]
    content = reply.choices[0].logprobs.content
    assert (content[0].token, content[0].bytes) == ("H", [72])
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_a_chat_stream_with_usage() -> None:
    text, usage = {0: "", 1: ""}, None
    async with openai_client() as client:
        async for chunk in await client.chat.completions.create(
            model="tiny", messages=HI, n=2, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text[choice.index] += choice.delta.content or ""
    assert text == {0: "Hello", 1: "Bye"}
    assert usage.completion_tokens == 10


async def test_completions_whole_and_streamed() -> None:
    async with openai_client() as client:
        whole = await client.completions.create(model="tiny", prompt="a", stop="l", logprobs=1)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("He", "stop")
        assert whole.choices[0].logprobs.tokens == ["H", "e", "<eos>"]
        stream = await client.completions.create(model="tiny", prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"


async def test_models() -> None:
    async with openai_client() as client:
        assert [model.id async for model in client.models.list()] == ["tiny", "alias"]
        assert (await client.models.retrieve("alias")).id == "alias"


async def test_refusals_are_the_clients_own_exceptions() -> None:
    async with openai_client() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nope", messages=HI)
        assert unknown.value.param == "model"
        with pytest.raises(openai.BadRequestError, match="128"):
            await client.completions.create(model="tiny", prompt="x" * 500)


async def test_a_failure_in_mid_stream_raises() -> None:
    engine = FakeEngineClient("Hello")
    engine.failure, engine.fail_after = RuntimeError("boom"), 2
    async with openai_client(engine) as client:
        stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="id is chatcmpl-"):
            [chunk async for chunk in stream]
