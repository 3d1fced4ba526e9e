"""Jina's reranker reads a query and all its documents at once: LLM.score() and the routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.models.byte_model import save_tokenizer
from tests.models.checkpoints import make_model, save
from tests.models.encoders.test_engine import renamed
from tests.server.harness import error_of, http
from vllm_lite import LLM, AsyncEngineArgs, AsyncLLM, PoolingParams
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import RequestError
from vllm_lite.scoring import list_prompts
from vllm_lite.server.app import build_app

MARKS = {"<|embed_token|>": 151670, "<|rerank_token|>": 151671}
QUERY, DOCUMENTS = "who?", ["a bee", "nobody at all", "you<|embed_token|>"]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024}


def marked_tokenizer() -> Tokenizer:
    """A token for each byte, and the marks with Jina's own ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: index for index, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces | MARKS, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(MARKS))
    return tokenizer


class Reranker:
    """The checkpoint in a folder, and scores as transformers computes them."""

    def __init__(self, path: Path) -> None:
        self.model = make_model("qwen3", vocab_size=151672, max_position_embeddings=1024)
        torch.manual_seed(4)
        self.layers = torch.randn(24, 48), torch.randn(512, 24) / 8
        self.path = save(self.model, path)
        first, last = self.layers
        renamed(path, "JinaForRanking", projector__0__weight=first, projector__2__weight=last)
        self.tokenizer = marked_tokenizer()
        save_tokenizer(self.tokenizer, path)

    @torch.inference_mode()
    def scores(self, prompt: str) -> list[float]:
        ids = torch.tensor(self.tokenizer.encode(prompt).ids)
        rows = self.model.base_model(ids[None]).last_hidden_state[
            0, ids >= MARKS["<|embed_token|>"]
        ]
        rows = F.linear(F.linear(rows, self.layers[0]).relu(), self.layers[1])
        found: list[float] = F.cosine_similarity(rows[-1:], rows[:-1]).tolist()
        return found


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    return Reranker(tmp_path_factory.mktemp("jina"))


def test_scores_are_of_one_prompt_for_a_query(reranker: Reranker) -> None:
    (prompt,) = list_prompts([QUERY], DOCUMENTS)
    with LLM(str(reranker.path), disable_frontend_multiprocessing=True, **OPTIONS) as llm:
        found = llm.score(QUERY, DOCUMENTS, use_tqdm=False)
        pairs = llm.score([QUERY, "what?"], DOCUMENTS[:2], use_tqdm=False)
        with pytest.raises(RequestError, match="cuts off the query or whole documents"):
            llm.score(QUERY, DOCUMENTS, pooling_params=PoolingParams(truncate_prompt_tokens=700))
    scores = [output.outputs.score for output in found]
    assert scores == pytest.approx(reranker.scores(prompt), abs=1e-4)
    assert len({output.request_id for output in found}) == 1
    wanted = [reranker.scores(one)[0] for one in list_prompts([QUERY, "what?"], DOCUMENTS[:2])]
    assert [output.outputs.score for output in pairs] == pytest.approx(wanted, abs=1e-4)
    assert scores[0] != pytest.approx(wanted[0], abs=1e-4)


async def test_routes_score_and_rerank(reranker: Reranker) -> None:
    config = AsyncEngineArgs(model=str(reranker.path), **OPTIONS).create_engine_config()
    engine = AsyncLLM.from_vllm_config(config, disable_frontend_multiprocessing=True)
    wanted = reranker.scores(list_prompts([QUERY], DOCUMENTS, "be kind")[0])
    try:
        async with http(app=build_app(engine, ServerConfig())) as session:
            body = {"query": QUERY, "documents": DOCUMENTS, "instruction": "be kind"}
            reply = (await session.post("/v1/rerank", json=body)).json()
            found = {one["index"]: one["relevance_score"] for one in reply["results"]}
            assert [found[i] for i in range(3)] == pytest.approx(wanted, abs=1e-4)
            assert list(found.values()) == sorted(found.values(), reverse=True)
            assert reply["results"][0]["document"]["text"] in DOCUMENTS
            body = {"text_1": QUERY, "text_2": DOCUMENTS, "max_tokens_per_doc": 3}
            reply = (await session.post("/score", json=body)).json()
            short = list_prompts([QUERY], ["a b", "nob", "you"])[0]
            got = [one["score"] for one in reply["data"]]
            assert got == pytest.approx(reranker.scores(short), abs=1e-4)
            for more, param in (
                ({"truncate_prompt_tokens": 700}, "truncate_prompt_tokens"),
                (
                    {"truncate_prompt_tokens": 99, "truncation_side": "left"},
                    "truncate_prompt_tokens",
                ),
                ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
            ):
                reply = await session.post("/score", json={**body, **more})
                assert error_of(reply)["param"] == param
    finally:
        await engine.shutdown()


def test_a_prompt_has_no_marks_of_its_texts() -> None:
    marks = "".join(MARKS)
    (prompt,) = list_prompts(["q" + marks], [marks + "d", "e"], "told" + marks)
    assert prompt.startswith("<|im_start|>system\nYou are a search relevance expert")
    assert prompt.endswith(
        "to query: q\n<instruct>\ntold\n</instruct>\n"
        '<passage id="0">\nd<|embed_token|>\n</passage>\n'
        '<passage id="1">\ne<|embed_token|>\n</passage>\n'
        "<query>\nq<|rerank_token|>\n</query><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
