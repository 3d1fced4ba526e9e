"""The openai package's own client and /v1/responses."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of, error_of, http
from tests.server.responses import CALL, PARSERS, TOOL, thinker


def openai_client(client: FakeEngineClient | None = None, **options: object) -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(app_of(client, **options))
    return openai.AsyncOpenAI(
        api_key="none",
        base_url="http://server/v1",
        http_client=httpx.AsyncClient(transport=transport),
        max_retries=0,
    )


async def test_text_usage_and_the_typed_response() -> None:
    async with openai_client() as client:
        reply = await client.responses.create(model="tiny", input="hi", instructions="Be brief.")
    assert (reply.status, reply.output_text) == ("completed", "Hello")
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert type(reply).model_validate(reply.model_dump()) is not None


async def test_every_event_is_one_that_the_client_knows() -> None:
    kinds: list[str] = []
    async with openai_client(thinker(), **PARSERS) as client:
        stream = await client.responses.create(model="tiny", input="hi", tools=[TOOL], stream=True)
        async for event in stream:
            assert type(event).__name__.startswith("Response"), event
            assert event.sequence_number == len(kinds)
            type(event).model_validate(event.model_dump())
            kinds.append(event.type)
    assert kinds[-1] == "response.completed"


async def test_the_stream_helper_collects_text_and_calls() -> None:
    async with (
        openai_client(thinker(), **PARSERS) as client,
        client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "Let me look."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[2].arguments == '{"city": "Rome"}'


async def test_a_round_of_tools_goes_back_as_items() -> None:
    engine = thinker(CALL)
    async with openai_client(engine, **PARSERS) as client:
        first = await client.responses.create(model="tiny", input="hi", tools=[TOOL])
        (call,) = first.output
        assert call.type == "function_call"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        history = [{"role": "user", "content": "hi"}, *first.output, result]
        again = await client.responses.create(model="tiny", input=history, tools=[TOOL])
        chained = await client.responses.create(
            model="tiny", input=[result], previous_response_id=first.id, tools=[TOOL]
        )
    assert again.status == chained.status == "completed"
    assert engine.seen[1][0] == engine.seen[2][0]


async def test_structured_output_is_parsed() -> None:
    class Place(BaseModel):
        city: str

    engine = FakeEngineClient('{"city": "Rome"}')
    async with openai_client(engine) as client:
        reply = await client.responses.parse(model="tiny", input="hi", text_format=Place)
    assert reply.output_parsed == Place(city="Rome")
    assert engine.prepared


async def test_logprobs_are_asked_for_by_include() -> None:
    async with openai_client(FakeEngineClient("Hi")) as client:
        reply = await client.responses.create(
            model="tiny", input="hi", include=["message.output_text.logprobs"], top_logprobs=2
        )
    logprobs = reply.output[0].content[0].logprobs
    assert [entry.token for entry in logprobs] == ["H", "i", "<eos>"]
    assert len(logprobs[0].top_logprobs) == 2


async def test_retrieve_delete_cancel_and_replay() -> None:
    async with openai_client() as client:
        kept = await client.responses.create(model="tiny", input="hi")
        assert (await client.responses.retrieve(kept.id)).output_text == "Hello"
        await client.responses.delete(kept.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(kept.id)
        stream = await client.responses.create(
            model="tiny", input="hi", background=True, stream=True
        )
        events = [event async for event in stream]
        replay = await client.responses.retrieve(
            events[0].response.id, stream=True, starting_after=events[3].sequence_number
        )
        assert [event async for event in replay] == events[4:]
        engine = FakeEngineClient()
    engine.gate = asyncio.Event()
    async with openai_client(engine) as client:
        queued = await client.responses.create(model="tiny", input="hi", background=True)
        assert queued.status == "queued"
        assert (await client.responses.cancel(queued.id)).status == "cancelled"


async def test_errors_are_the_clients_own() -> None:
    async with openai_client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="tiny", input="hi", temperature=9)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="gpt", input="hi")
    assert caught.value.param == "temperature"


async def test_the_items_that_a_response_answers_page_by_page() -> None:
    async with openai_client() as client:
        first = await client.responses.create(model="tiny", input="one")
        given = [
            {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
            {"role": "assistant", "content": "three"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "four"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "five"}]},
            {"role": "user", "content": "six"},
        ]
        second = await client.responses.create(
            model="tiny", input=given, previous_response_id=first.id
        )
        items = client.responses.input_items
        pages = [page async for page in (await items.list(second.id, limit=3)).iter_pages()]
        oldest = (await items.list(second.id, order="asc")).data
        with pytest.raises(openai.BadRequestError) as caught:
            await items.list(second.id, limit=101)
        assert caught.value.param == "limit"
        with pytest.raises(openai.NotFoundError):
            await items.list("resp_none")
    for item in oldest:
        type(item).model_validate(item.model_dump())
    # The conversation before it, its reply included, comes first.
    kinds = ["message"] * 4 + ["function_call", "function_call_output", "reasoning", "message"]
    assert [item.type for item in oldest] == kinds
    texts = [item.content[0].text for item in oldest if item.type == "message"]
    assert texts == ["one", "Hello", "two", "three", "six"]
    assert [len(page.data) for page in pages] == [3, 3, 2]
    assert [item.id for page in pages for item in page.data] == [item.id for item in oldest[::-1]]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=²", "limit"), ("order=up", "order"), ("after=none", "after")],
)
async def test_a_page_that_cannot_be_is_refused_by_name(query: str, param: str) -> None:
    async with http() as session:
        reply = (await session.post("/v1/responses", json={"input": "hi"})).json()
        refused = await session.get(f"/v1/responses/{reply['id']}/input_items?{query}")
        assert (refused.status_code, error_of(refused)["param"]) == (400, param)
