"""The anthropic package's own client, over the application."""

from __future__ import annotations

import anthropic
import httpx2
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of
from tests.server.responses import CALL, PARSERS, said, thinker
from tests.server.test_messages import TOOL

ASK = {"model": "tiny", "max_tokens": 500, "messages": HI}


def anthropic_client(
    client: FakeEngineClient | None = None, **options: object
) -> anthropic.AsyncAnthropic:
    transport = httpx2.ASGITransport(app_of(client, **options))
    return anthropic.AsyncAnthropic(
        api_key="secret",
        base_url="http://server",
        http_client=httpx2.AsyncClient(transport=transport),
        max_retries=0,
    )


async def test_a_message_with_the_key_in_its_own_header() -> None:
    engine = FakeEngineClient(max_model_len=1024)
    async with anthropic_client(engine, api_key=["secret"]) as client:
        message = await client.messages.create(**ASK, system="Be brief.")
    assert [block.text for block in message.content] == ["Hello"]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 6)
    assert said(engine).startswith("<system>Be brief.")


async def test_a_streamed_message_is_the_whole_one() -> None:
    async with anthropic_client(thinker(), **PARSERS) as client:
        whole = await client.messages.create(**ASK, tools=[TOOL])
        async with client.messages.stream(**ASK, tools=[TOOL]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
    assert text == "Let me look."
    kinds = ["thinking", "text", "tool_use"]
    assert [block.type for block in final.content] == kinds
    assert [block.type for block in whole.content] == kinds
    assert final.content[2].input == whole.content[2].input == {"city": "Rome"}
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_a_round_of_tools_goes_back_as_blocks() -> None:
    engine = thinker(CALL)
    async with anthropic_client(engine, **PARSERS) as client:
        first = await client.messages.create(**ASK, tools=[TOOL])
        result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "sunny"}
        history = [
            *HI,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        again = await client.messages.create(**{**ASK, "messages": history}, tools=[TOOL])
    assert again.stop_reason == "tool_use"
    assert "<tool>sunny" in said(engine)


async def test_tokens_are_counted() -> None:
    async with anthropic_client(FakeEngineClient(max_model_len=1024)) as client:
        counted = await client.messages.count_tokens(model="tiny", messages=HI)
        message = await client.messages.create(**ASK)
    assert counted.input_tokens == message.usage.input_tokens


async def test_errors_are_the_clients_own() -> None:
    async with anthropic_client() as client:
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            await client.messages.create(**{**ASK, "max_tokens": 9}, extra_body={"temperature": 9})
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await client.messages.create(**{**ASK, "model": "claude"})
    async with anthropic_client(api_key=["other"]) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASK)


async def test_a_failure_in_mid_stream_is_raised() -> None:
    engine = FakeEngineClient(max_model_len=1024)
    engine.failure, engine.fail_after = RuntimeError("boom"), 2
    async with anthropic_client(engine) as client:
        with pytest.raises(anthropic.APIStatusError, match="server made an error"):
            async for _ in await client.messages.create(**ASK, stream=True):
                pass
