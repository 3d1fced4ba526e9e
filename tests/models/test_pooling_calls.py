"""LLM's calls for models that pool: classes, scores of pairs and rewards, as of transformers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from tests.models.byte_model import save_tokenizer
from tests.models.encoders.cases import CLASSES, make_encoder
from tests.models.encoders.test_engine import renamed
from tests.unit.test_scoring import bert_tokenizer
from vllm_lite import LLM, PoolingParams
from vllm_lite.errors import RequestError

QUERY, TEXTS = "a b c", ["d e", "f", "b a c d"]
TEMPLATE = "{{ messages[1].content }} j {{ messages[0].content }}"
ONE_CLASS = {"id2label": {0: "fits"}, "label2id": {"fits": 0}}
CROSS_ENCODER = "BertForSequenceClassification"


def written(path: Path, case: str, **changes: Any) -> PreTrainedModel:
    """A random encoder, with a tokenizer of letters beside it."""
    model = make_encoder(case, **changes)
    model.save_pretrained(path)
    save_tokenizer(bert_tokenizer().backend, path)
    return model


def engine(path: Path) -> LLM:
    return LLM(str(path), dtype="float32", disable_frontend_multiprocessing=True)


def ids_of(text: str) -> list[int]:
    return bert_tokenizer().encode(text)


@torch.inference_mode()
def share(model: PreTrainedModel, first: list[int], second: list[int]) -> float:
    """A cross-encoder's probability for a text, and one of another type behind it."""
    types = torch.tensor([[0] * len(first) + [1] * len(second)])
    logits = model(torch.tensor([first + second]), token_type_ids=types).logits
    return float(logits.sigmoid())


def test_a_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    model = written(tmp_path, CROSS_ENCODER, **ONE_CLASS)
    with engine(tmp_path) as llm:
        found = llm.score(QUERY, TEXTS, use_tqdm=False)
        pairs = llm.score([QUERY, "i"], TEXTS[:2], use_tqdm=False)
        raw = llm.score(QUERY, "f", pooling_params=PoolingParams(use_activation=False))
        cut = llm.score(QUERY, TEXTS[2], pooling_params=PoolingParams(truncate_prompt_tokens=7))
        shown = llm.score(QUERY, "f", chat_template=TEMPLATE, use_tqdm=False)
    wanted = [share(model, ids_of(QUERY), ids_of(text)[1:]) for text in TEXTS]
    assert [output.outputs.score for output in found] == pytest.approx(wanted, abs=1e-4)
    assert [output.prompt_token_ids for output in found] == [
        ids_of(QUERY) + ids_of(text)[1:] for text in TEXTS
    ]
    assert pairs[0].outputs.score == found[0].outputs.score
    wanted[1:] = [share(model, ids_of("i"), ids_of("f")[1:])]
    assert pairs[1].outputs.score == pytest.approx(wanted[1], abs=1e-4)
    odds = torch.tensor(found[1].outputs.score).logit()
    assert raw[0].outputs.score == pytest.approx(float(odds), abs=1e-4)
    assert cut[0].prompt_token_ids == ids_of("a b") + ids_of("b a")[1:]
    assert shown[0].outputs.score == pytest.approx(share(model, ids_of("f j a b c"), []), abs=1e-4)


def test_vectors_are_compared_by_the_cosine(tmp_path: Path) -> None:
    written(tmp_path, "BertModel")
    with engine(tmp_path) as llm:
        found = llm.score(QUERY, TEXTS, use_tqdm=False)
        vectors = [torch.tensor(o.outputs.embedding) for o in llm.embed([QUERY, *TEXTS])]
        with pytest.raises(RequestError, match="1:1, 1:N or N:N, not 2:3"):
            llm.score([QUERY, QUERY], TEXTS)
        with pytest.raises(RequestError, match="answers embed and token_embed"):
            llm.classify(QUERY)
    wanted = [float(vectors[0] @ vector) for vector in vectors[1:]]
    assert [output.outputs.score for output in found] == pytest.approx(wanted, abs=1e-5)
    assert found[0].prompt_token_ids == ids_of(QUERY) + ids_of(TEXTS[0])


def test_colbert_s_vectors_are_matched_one_by_one(tmp_path: Path) -> None:
    model = written(tmp_path, "BertModel")
    linear = torch.randn(128, 48, generator=torch.Generator().manual_seed(2))
    renamed(tmp_path, "HF_ColBERT", linear__weight=linear)
    with engine(tmp_path) as llm:
        found = llm.score(QUERY, TEXTS, use_tqdm=False)

    @torch.inference_mode()
    def vectors(text: str) -> torch.Tensor:
        hidden = model(torch.tensor([ids_of(text)])).last_hidden_state[0]
        return F.normalize(hidden @ linear.T, dim=1)

    wanted = [float((vectors(QUERY) @ vectors(text).T).amax(1).sum()) for text in TEXTS]
    assert [output.outputs.score for output in found] == pytest.approx(wanted, abs=1e-3)


@torch.inference_mode()
def test_classes_are_probabilities(tmp_path: Path) -> None:
    model = written(tmp_path, CROSS_ENCODER, **CLASSES)
    with engine(tmp_path) as llm:
        found = llm.classify(TEXTS, use_tqdm=False)
        with pytest.raises(RequestError, match="neither vectors nor one class"):
            llm.score(QUERY, TEXTS)
    for text, output in zip(TEXTS, found, strict=True):
        wanted = model(torch.tensor([ids_of(text)])).logits[0].softmax(0)
        assert output.outputs.probs == pytest.approx(wanted.tolist(), abs=1e-4)
        assert output.outputs.num_classes == 3


def test_rewards_are_classes_of_tokens_under_an_older_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    written(tmp_path, "BertForTokenClassification")
    with engine(tmp_path) as llm:
        (rewards,) = llm.reward(QUERY, use_tqdm=False)
        (classes,) = llm.encode(QUERY, pooling_task="token_classify", use_tqdm=False)
    assert rewards.outputs == classes.outputs and rewards.outputs.data.shape == (5, 3)
    assert 'LLM.reward() is deprecated; use encode() with pooling_task="token_' in caplog.text
