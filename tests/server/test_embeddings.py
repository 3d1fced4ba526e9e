"""Routes that embed: inputs of every form in, vectors in every encoding out."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.server.fake_client import FakeEngineClient, vector_of
from tests.server.harness import Connection, app_of, error_of, post
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.errors import EngineGenerateError
from vllm_lite.server.pooling import run

SIZE = 8


def engine(**pooling: Any) -> FakeEngineClient:
    """An engine that embeds."""
    return FakeEngineClient(pooling=PoolingFacts(**{"size": SIZE, **pooling}))


async def embed(client: FakeEngineClient | None = None, /, **body: Any) -> httpx.Response:
    return await post("/v1/embeddings", body, client or engine())


def ids(text: str) -> list[int]:
    return list(text.encode())


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["embedding"] for one in data]


def expected(*inputs: list[int]) -> Any:
    return [pytest.approx(vector_of(one, SIZE).tolist()) for one in inputs]


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("hello", [ids("hello")]),
        (["hello", "you"], [ids("hello"), ids("you")]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[1, 2], "you"], [[1, 2], ids("you")]),
    ],
)
async def test_inputs(given: object, inputs: list[list[int]]) -> None:
    reply = await embed(model="tiny", input=given, user="me")
    assert vectors(reply) == expected(*inputs)
    payload = reply.json()
    assert payload["id"].startswith("embd-")
    assert (payload["object"], payload["model"]) == ("list", "tiny")
    assert {one["object"] for one in payload["data"]} == {"embedding"}
    count = sum(map(len, inputs))
    usage = payload["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (count, count)


async def test_conversations_are_inputs_too() -> None:
    hi = [{"role": "user", "content": "hi"}]
    bye = [{"role": "user", "content": [{"type": "text", "text": "bye"}]}]
    shown = ids("<user>hi\n")
    for body in ({"messages": hi}, {"input": hi}):
        assert vectors(await embed(**body)) == expected(shown)
    both = expected(shown, ids("<user>bye\n"))
    for body in ({"messages": [hi, bye]}, {"input": [hi, bye]}):
        assert vectors(await embed(**body)) == both
    open_ended = await embed(messages=hi, add_generation_prompt=True)
    assert vectors(open_ended) == expected(ids("<user>hi\n<assistant>"))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, "abc"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, "def"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncate_prompt_tokens": -1}, "abcdef"),
    ],
)
async def test_truncation(options: dict[str, Any], kept: str) -> None:
    for given in ("abcdef", ids("abcdef")):
        reply = await embed(input=given, **options)
        assert vectors(reply) == expected(ids(kept))
        assert reply.json()["usage"]["prompt_tokens"] == len(kept)
    whole = await embed(input="x" * 200, truncate_prompt_tokens=-1)
    assert whole.json()["usage"]["prompt_tokens"] == 128


@pytest.mark.parametrize(
    ("dtype", "numpy_type"), [("float32", "f4"), ("float16", "f2"), ("bfloat16", "u2")]
)
@pytest.mark.parametrize("endianness", ["native", "little", "big"])
async def test_encodings(dtype: str, numpy_type: str, endianness: str) -> None:
    wanted = np.stack([vector_of(ids(text), SIZE) for text in ("hello", "you")])
    options = {"input": ["hello", "you"], "embed_dtype": dtype, "endianness": endianness}
    order = ">" if endianness == "big" else "<"

    def read(raw: bytes) -> Any:
        values = np.frombuffer(raw, order + numpy_type)
        if dtype == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32).reshape(-1, SIZE)

    texts = vectors(await embed(**options, encoding_format="base64"))
    found = np.concatenate([read(base64.b64decode(text)) for text in texts])
    np.testing.assert_allclose(found, wanted, rtol=1e-2)
    bare = await embed(**options, encoding_format="bytes_only")
    assert bare.headers["content-type"] == "application/octet-stream"
    assert "metadata" not in bare.headers
    np.testing.assert_array_equal(read(bare.content), found)
    described = await embed(**options, encoding_format="bytes")
    assert described.content == bare.content
    metadata = json.loads(described.headers["metadata"])
    assert metadata["usage"]["prompt_tokens"] == 8
    size = len(bare.content) // 2
    assert metadata["data"][1] == {
        "index": 1,
        "embed_dtype": dtype,
        "endianness": endianness,
        "start": size,
        "end": 2 * size,
        "shape": [SIZE],
    }


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "input or messages"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input.1", "empty"),
        ({"input": ["a", 1.5]}, "input.1", "string or a list of token ids"),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": ["a"] * 100_000}, "input", "16384"),
        ({"input": [5000]}, "input", "not in the vocabulary"),
        ({"messages": [{"role": "user", "content": "a"}] * 2, "dimensions": 0}, "dimensions", "1"),
        ({"input": [-1]}, "input", "negative"),
        ({"input": "x" * 200}, "input_tokens", "128 tokens, but the prompt has 200"),
        ({"input": "a", "messages": []}, "input", "either"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [[]]}, "messages.0", "empty"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "must be a string"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "128"),
        ({"input": "a", "truncate_prompt_tokens": 129}, "truncate_prompt_tokens", "128"),
        ({"input": "a", "truncation_side": "top"}, "truncation_side", "left"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "a", "embed_dtype": "int8"}, "embed_dtype", "float32"),
        ({"input": "a", "padding": "max_length"}, "padding", "not supported"),
        ({"input": "a", "normalize": True}, "normalize", "use_activation"),
        ({"input": "a", "chat_template": "x"}, None, ""),
        ({"input": "a", "cache_salt": "a@b"}, "cache_salt", "must not hold"),
        ({"input": "a", "dimensions": 4}, "dimensions", "dimensions"),
    ],
)
async def test_bad_input(body: dict[str, Any], param: str | None, words: str) -> None:
    client = engine()
    reply = await embed(client, **body)
    if param is None:
        assert reply.status_code == 200
        return
    assert reply.status_code == 400, reply.text
    error = error_of(reply)
    assert error["param"] == param
    assert words in error["message"]
    assert not client.running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v2/embed", {"texts": ["a"]}),
        ("/pooling", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
async def test_an_unknown_model_is_a_404_that_names_no_field(path: str, body: Any) -> None:
    tasks = ("classify", "token_classify") if path == "/classify" else ("embed", "token_embed")
    client = engine(tasks=tasks, num_labels=2, id2label=("no", "yes"))
    reply = await post(path, {"model": "other", **body}, client)
    error = error_of(reply)
    assert (reply.status_code, error["type"], error["param"]) == (404, "NotFoundError", None)
    assert "'other' does not exist; served: " in error["message"]
    assert not client.running


async def test_a_template_of_the_clients_is_refused() -> None:
    reply = await embed(messages=[{"role": "user", "content": "a"}], chat_template="x")
    assert error_of(reply)["param"] == "chat_template"


async def test_what_one_request_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_NUMBERS", 2 * SIZE)
    assert (await embed(input=["a", "b"])).status_code == 200
    error = error_of(await embed(input=["a", "b", "c"]))
    assert "send fewer inputs" in error["message"] and error["param"] == "input"
    body = {"query": "a", "documents": ["b", "c"]}
    assert error_of(await post("/rerank", body, engine()))["param"] == "documents"
    body = {"text_1": "a", "text_2": ["b", "c"]}
    assert error_of(await post("/score", body, engine()))["param"] == "text_2"
    reply = await post("/pooling", {"input": "abc", "task": "token_embed"}, engine())
    assert "3 vectors of 8 numbers" in error_of(reply)["message"]


async def test_pooling_answers_the_models_tasks() -> None:
    reply = await post("/pooling", {"input": "hello"}, engine())
    assert reply.json()["id"].startswith("pooling-")
    (entry,) = reply.json()["data"]
    assert (entry["object"], entry["index"]) == ("pooling", 0)
    assert entry["data"] == expected(ids("hello"))[0]
    reply = await post("/pooling", {"input": "you", "task": "token_embed"}, engine())
    (entry,) = reply.json()["data"]
    assert entry["data"] == expected(*([one] for one in ids("you")))
    for task, words in (("classify", "embed or token_embed"), ("encode", "replaced")):
        error = error_of(await post("/pooling", {"input": "a", "task": task}, engine()))
        assert error["param"] == "task"
        assert words in error["message"]


async def test_inputs_may_be_longer_than_the_context_where_parts_are_embedded() -> None:
    client = engine(enable_chunked_processing=True, max_embed_len=300)
    given = [i % 250 for i in range(200)]
    reply = await embed(client, input=[given, "short"])
    assert vectors(reply) == expected(given, ids("short"))
    assert reply.json()["usage"]["prompt_tokens"] == 205
    error = error_of(await embed(client, input=[1] * 301))
    assert "301" in error["message"] and "300" in error["message"]


async def test_cohere() -> None:
    client = engine(prompts={"query": "q: ", "other": "o: "})

    async def ask(**body: Any) -> httpx.Response:
        return await post("/v2/embed", {"model": "tiny", **body}, client)

    reply = (await ask(texts=["hi", "you"], input_type="search_document")).json()
    assert reply["embeddings"] == {"float": expected(ids("hi"), ids("you"))}
    assert reply["texts"] == ["hi", "you"]
    assert reply["response_type"] == "embeddings_by_type"
    assert reply["meta"]["billed_units"] == {"input_tokens": 5, "image_tokens": 0}
    for name, prefix in (("search_query", "q: "), ("other", "o: ")):
        reply = (await ask(texts=["hi"], input_type=name)).json()
        assert reply["embeddings"]["float"] == expected(ids(prefix + "hi"))
    types = ["binary", "ubinary", "base64"]
    parts = [{"content": [{"type": "text", "text": "hi"}]}]
    found = (await ask(inputs=parts, embedding_types=types)).json()["embeddings"]
    assert found["ubinary"] == [[255]]
    assert found["binary"] == [[127]]
    assert np.frombuffer(base64.b64decode(found["base64"][0]), "<f4").size == SIZE
    long = "x" * 200
    assert (await ask(texts=[long])).json()["meta"]["billed_units"]["input_tokens"] == 128
    assert error_of(await ask(texts=[long], truncate="NONE"))["param"] == "input_tokens"
    for body, param in (
        ({"texts": ["abc"], "truncate": "NONE", "max_tokens": 2}, "max_tokens"),
        ({"texts": ["a"], "input_type": "nope"}, "input_type"),
        ({"texts": []}, "texts"),
        ({"texts": [""]}, "texts.0"),
        ({"texts": ["a"], "inputs": parts}, "texts"),
        ({"inputs": [{"content": [{"type": "image_url"}]}]}, "inputs.0.content"),
        ({"images": ["data:"]}, "images"),
        ({"texts": ["a"], "output_dimension": 4}, "output_dimension"),
        ({"texts": ["a"], "output_dimension": 0}, "output_dimension"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types.0"),
    ):
        assert error_of(await ask(**body))["param"] == param


async def test_a_prompt_may_be_left_out_of_the_vectors() -> None:
    client = engine(prompts={"query": "q: ", "plain": ""}, counts_prompts=False)

    async def ask(name: str, **body: Any) -> httpx.Response:
        return await post("/v2/embed", {"texts": ["hi"], "input_type": name, **body}, client)

    for name, prompt in (("search_query", "q: "), ("search_document", ""), ("plain", "")):
        assert (await ask(name)).json()["embeddings"]["float"] == expected(ids(prompt + "hi"))
        _, params, _ = client.pooled[-1]
        assert params.num_uncounted_tokens == len(ids("q: ")) * bool(prompt)
    assert error_of(await ask("query", truncate="START"))["param"] == "truncate"
    assert error_of(await ask("query", max_tokens=len(ids("q: "))))["param"] == "texts"


async def test_invocations_are_told_apart_by_their_fields() -> None:
    reply = await post("/invocations", {"input": "hello"}, engine())
    assert vectors(reply) == expected(ids("hello"))
    reply = await post("/invocations", {"input": "hello", "task": "embed"}, engine())
    assert reply.json()["data"][0]["object"] == "pooling"
    error = error_of(await post("/invocations", {"prompt": "hello"}, engine()))
    assert "input or messages" in error["message"]


async def test_wrong_tasks_are_refused_with_what_would_help() -> None:
    for path, words in (
        ("/v1/embeddings", "--convert embed"),
        ("/v2/embed", "--convert embed"),
        ("/pooling", "--runner pooling"),
        ("/classify", "--convert classify"),
        ("/rerank", "--convert embed or classify"),
    ):
        reply = await post(path, {"input": "a"})
        assert reply.status_code == 400
        assert words in error_of(reply)["message"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        reply = await post(path, {}, engine())
        assert reply.status_code == 400
        assert "generates none" in error_of(reply)["message"]
    error = error_of(await post("/classify", {"input": "a"}, engine()))
    assert "embed and token_embed" in error["message"]


async def test_models_tell_the_task() -> None:
    for client, task in ((engine(), "embed"), (FakeEngineClient(), "generate")):
        transport = httpx.ASGITransport(app_of(client))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as session:
            reply = await session.get("/v1/models")
            assert {one["task"] for one in reply.json()["data"]} == {task}


async def test_a_failed_or_aborted_request() -> None:
    client = engine()
    client.failure = EngineGenerateError("not finite: /secret")
    reply = await embed(client, input="a", request_id="mine")
    assert reply.status_code == 500
    assert "its id is" in error_of(reply)["message"]
    assert "secret" not in reply.text
    client.failure, client.gate = None, asyncio.Event()
    task = asyncio.create_task(embed(client, input=["a", "b"], request_id="mine"))
    while len(client.running) < 2:
        await asyncio.sleep(0)
    await client.abort(["embd-mine-0", "embd-mine-1"])
    assert (await task).status_code == 503


async def test_a_client_that_leaves_ends_its_requests() -> None:
    client = engine()
    client.gate = asyncio.Event()
    connection = Connection(app_of(client), "/v1/embeddings", {"input": ["a", "b", "c"]})
    while len(client.running) < 3:
        await asyncio.sleep(0)
    await connection.leave()
    assert not client.running
    assert len(client.aborted) == 3


async def test_what_the_engine_is_told() -> None:
    client = engine()
    transport = httpx.ASGITransport(app_of(client))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as session:
        await session.post(
            "/v1/embeddings",
            json={"input": "a", "cache_salt": "salt", "priority": 3, "user": "me"},
            headers={"x-request-id": "mine"},
        )
    assert client.pooled[0][2] == "embd-mine"
    assert client.pooled[0][1].task == "embed"
    assert client.options == [{"priority": 3, "cache_salt": "salt"}]
    assert client.origins[0].tenant


def openai_client(client: FakeEngineClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="none",
        base_url="http://server/v1",
        http_client=httpx.AsyncClient(transport=httpx.ASGITransport(app_of(client))),
        max_retries=0,
    )


async def test_openais_client() -> None:
    async with openai_client(engine()) as client:
        reply = await client.embeddings.create(model="tiny", input=["hello", "you"])
        assert [one.embedding for one in reply.data] == expected(ids("hello"), ids("you"))
        assert reply.usage.prompt_tokens == 8
        floats = await client.embeddings.create(
            model="tiny", input="hello", encoding_format="float"
        )
        assert floats.data[0].embedding == reply.data[0].embedding
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            await client.embeddings.create(model="tiny", input="a", dimensions=4)
        with pytest.raises(openai.BadRequestError, match="generates none"):
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "a"}]
            )
