"""Routes that classify and score: pairs of every form in, numbers out."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.fake_client import FakeEngineClient, vector_of
from tests.server.harness import error_of, post
from tests.unit.test_scoring import bert_tokenizer
from vllm_lite.config.pooling import PoolingFacts

SIZE = 8


def engine(kind: str = "embed", **pooling: Any) -> FakeEngineClient:
    """An engine of a task, over a tokenizer of letters that knows pairs."""
    tasks = {"embed": ("embed", "token_embed"), "late": ("token_embed",)}.get(kind, ("classify",))
    known = {"tasks": tasks, "size": SIZE, "num_labels": 1, "num_token_types": 2}
    facts = PoolingFacts(**{**known, **pooling})
    client = FakeEngineClient(pooling=facts)
    client.tokenizer = bert_tokenizer()  # type: ignore[assignment]
    return client


def embedded(text: str) -> Any:
    return vector_of([0, *(2 + ord(letter) - ord("a") for letter in text.split()), 1], SIZE)


def cosine(first: str, second: str) -> Any:
    one, two = embedded(first), embedded(second)
    return pytest.approx(one @ two / np.linalg.norm(one) / np.linalg.norm(two), rel=1e-5)


async def score(client: FakeEngineClient | None = None, **body: Any) -> httpx.Response:
    return await post("/score", body, client or engine())


@pytest.mark.parametrize(
    "names",
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
async def test_pairs_under_any_names(names: tuple[str, str]) -> None:
    for firsts, seconds, pairs in (
        ("a b", "c", [("a b", "c")]),
        ("a b", ["c", "d"], [("a b", "c"), ("a b", "d")]),
        (["a", "b"], ["c", {"text": "d"}], [("a", "c"), ("b", "d")]),
    ):
        for path in ("/score", "/v1/score", "/invocations"):
            reply = await post(path, dict(zip(names, (firsts, seconds), strict=True)), engine())
            assert reply.status_code == 200, reply.text
            payload = reply.json()
            assert payload["id"].startswith("score-")
            assert [one["score"] for one in payload["data"]] == [cosine(*pair) for pair in pairs]
            assert {one["object"] for one in payload["data"]} == {"score"}
    assert payload["usage"]["prompt_tokens"] == 12


async def test_late_interaction() -> None:
    client = engine("late")
    reply = await score(client, text_1="a b", text_2=["a", "c d"])
    query, document = ([vector_of([i], SIZE) for i in ids] for ids in ([0, 2, 3, 1], [0, 2, 1]))
    wanted = (np.stack(query) @ np.stack(document).T).max(axis=1).sum()
    assert reply.json()["data"][0]["score"] == pytest.approx(wanted, rel=1e-5)
    assert [params.task for _, params, _ in client.pooled] == ["token_embed"] * 3


async def test_a_cross_encoder_reads_both_texts_at_once() -> None:
    client = engine("cross")
    reply = await score(client, text_1="a b", text_2=["c", "d e f"], use_activation=False)
    assert len(reply.json()["data"]) == 2
    assert [ids for ids, _, _ in client.pooled] == [[0, 2, 3, 1, 4, 1], [0, 2, 3, 1, 5, 6, 7, 1]]
    starts = [params.extra_kwargs for _, params, _ in client.pooled]
    assert starts == [{"compressed_token_type_ids": 4}] * 2
    assert {params.use_activation for _, params, _ in client.pooled} == {False}
    assert reply.json()["usage"]["prompt_tokens"] == 14


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"max_tokens_per_doc": 1}, [0, 2, 3, 1, 4, 1]),
        ({"max_tokens_per_query": 1, "max_tokens_per_doc": 2}, [0, 2, 1, 4, 5, 1]),
        ({"truncate_prompt_tokens": 6}, [0, 2, 1, 4, 5, 1]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [5, 6, 1]),
    ],
)
async def test_cut_pairs(options: dict[str, Any], ids: list[int]) -> None:
    client = engine("cross")
    await score(client, text_1="a b", text_2="c d e", **options)
    assert client.pooled[0][0] == ids


async def test_a_templates_pairs() -> None:
    template = "{{ instruction }} {{ messages[0].content }} {{ messages[1].content }}"
    client = engine("cross")
    body = {"text_1": "a", "text_2": "b", "instruction": "c"}
    reply = await post("/score", body, client, chat_template=template)
    assert reply.status_code == 200, reply.text
    assert client.pooled[0][0] == [0, 4, 2, 3, 1]
    for other in (engine("cross"), engine()):
        assert error_of(await post("/score", body, other))["param"] == "instruction"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/invocations"])
async def test_reranking(path: str) -> None:
    documents = ["c", {"text": "a b"}, "a"]
    reply = await post(path, {"model": "tiny", "query": "a b", "documents": documents}, engine())
    payload = reply.json()
    assert (payload["model"], payload["id"][:6]) == ("tiny", "score-")
    results = payload["results"]
    assert results[0] == {
        "index": 1,
        "document": {"text": "a b", "multi_modal": None},
        "relevance_score": pytest.approx(1),
    }
    scores = [one["relevance_score"] for one in results]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert payload["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
    body = {"query": "a b", "documents": documents, "top_n": 1, "return_documents": False}
    (best,) = (await post(path, body, engine())).json()["results"]
    assert best == {"index": 1, "relevance_score": pytest.approx(1)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text_1"),
        ({"text_1": "a"}, "text_1"),
        ({"text_1": "a", "text_2": "b", "items": "c"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2.1"),
        ({"text_1": "a", "text_2": 5}, "text_2"),
        ({"text_1": "a", "text_2": {"content": [{"type": "image_url"}]}}, "text_2"),
        ({"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
        ({"text_1": "a", "text_2": "b", "max_tokens_per_doc": 128}, "max_tokens_per_doc"),
        ({"text_1": "a", "text_2": "b", "max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"text_1": "a", "text_2": "b " * 200}, "input_tokens"),
    ],
)
async def test_bad_pairs(body: dict[str, Any], param: str) -> None:
    for kind in ("embed", "cross"):
        assert error_of(await score(engine(kind), **body))["param"] == param
    for body, param in (
        ({"query": "a"}, "documents"),
        ({"query": ["a", "b"], "documents": ["a"]}, "query"),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
    ):
        assert error_of(await post("/rerank", body, engine()))["param"] == param


async def test_classes() -> None:
    client = engine("classify", num_labels=3, id2label=("good", "bad", "plain"))
    for path in ("/classify", "/invocations"):
        reply = await post(path, {"input": ["a b", "c"]}, client)
        assert reply.json()["id"].startswith("classify-")
        first, second = reply.json()["data"]
        assert first["probs"] == pytest.approx(vector_of([0, 2, 3, 1], 3).tolist())
        assert (first["index"], first["label"], first["num_classes"]) == (0, "good", 3)
        assert (second["index"], second["label"]) == (1, "bad")
        assert reply.json()["usage"]["prompt_tokens"] == 7
    reply = await post("/score", {"text_1": "a", "text_2": "b"}, client)
    assert "scores pairs of texts" in error_of(reply)["message"]
    assert error_of(await post("/v1/embeddings", {"input": "a"}, client))
