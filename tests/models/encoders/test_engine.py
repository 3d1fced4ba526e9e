"""Answers of encoders through the whole engine: vectors, classes, weights of words and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.checkpoints import make_model
from tests.models.encoders.cases import make_encoder
from tests.models.encoders.test_encoders import expected, prompts
from vllm_lite import LLM, PoolingParams
from vllm_lite.errors import RequestError, UsageError

TYPES = "compressed_token_type_ids"


def engine(path: Path, **options: Any) -> LLM:
    common = {"dtype": "float32", "skip_tokenizer_init": True}
    return LLM(str(path), **common, disable_frontend_multiprocessing=True, **options)


def answers(llm: LLM, batch: list[list[int]], params: PoolingParams) -> list[Tensor]:
    """Of each prompt; computed together and one by one they have the same bits."""
    given = [{"prompt_token_ids": ids} for ids in batch]
    together = [o.outputs.data for o in llm.encode(given, params, use_tqdm=False)]
    for prompt, found in zip(given[:4], together, strict=False):
        assert torch.equal(llm.encode([prompt], params, use_tqdm=False)[0].outputs.data, found)
    return together


@pytest.mark.parametrize("case", ["BertModel", "XLMRobertaModel-odd", "ModernBertModel-odd"])
def test_vectors_are_the_first_hidden_state(case: str, tmp_path: Path) -> None:
    reference = make_encoder(case)
    reference.save_pretrained(tmp_path)
    with engine(tmp_path) as llm:
        found = answers(llm, prompts(), PoolingParams(task="embed"))
        tokens = answers(llm, prompts(), PoolingParams(task="token_embed", use_activation=False))
        assert llm.get_stats().num_used_blocks == 0
    for ids, vector, rows in zip(prompts(), found, tokens, strict=True):
        want, _ = expected(reference, ids)
        torch.testing.assert_close(rows, want, atol=1e-4, rtol=0)
        torch.testing.assert_close(vector, F.normalize(want[0], dim=0), atol=1e-4, rtol=0)


def test_a_prompt_may_fill_the_context(tmp_path: Path) -> None:
    reference, whole = make_encoder("BertModel"), [5 + i % 100 for i in range(64)]
    reference.save_pretrained(tmp_path)
    with engine(tmp_path, max_num_batched_tokens=32, max_num_seqs=8) as llm:
        found = answers(llm, [whole, [7], whole[:40]], PoolingParams(task="embed"))
        with pytest.raises(RequestError, match="length is 64 tokens, but the prompt has 65"):
            llm.embed({"prompt_token_ids": [*whole, 5]})
    want = F.normalize(expected(reference, whole)[0][0], dim=0)
    torch.testing.assert_close(found[0], want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "case", ["BertForSequenceClassification", "ModernBertForSequenceClassification-odd"]
)
def test_classes_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    reference = make_encoder(case)
    reference.save_pretrained(tmp_path)
    with engine(tmp_path) as llm:
        found = answers(llm, prompts(), PoolingParams(task="classify"))
    for ids, shares in zip(prompts(), found, strict=True):
        logits = expected(reference, ids)[1]
        assert logits is not None
        torch.testing.assert_close(shares, logits.softmax(0), atol=1e-4, rtol=0)


@torch.inference_mode()
def test_the_second_text_has_another_type(tmp_path: Path) -> None:
    reference = make_encoder("BertForSequenceClassification")
    reference.save_pretrained(tmp_path)
    ids = max(prompts(), key=len)
    types = torch.tensor([[0] * 7 + [1] * (len(ids) - 7)])
    want = reference(torch.tensor([ids]), token_type_ids=types).logits[0].softmax(0)
    with engine(tmp_path) as llm:
        params = PoolingParams(task="classify", extra_kwargs={TYPES: 7})
        (shares,) = answers(llm, [ids], params)
    torch.testing.assert_close(shares, want, atol=1e-4, rtol=0)


def test_a_type_that_a_model_lacks_is_refused(tmp_path: Path) -> None:
    make_encoder("DistilBertForSequenceClassification").save_pretrained(tmp_path)
    params = PoolingParams(task="classify", extra_kwargs={TYPES: 1})
    with (
        engine(tmp_path) as llm,
        pytest.raises(RequestError, match="tokens have one type") as caught,
    ):
        llm.encode([5, 6], params)
    assert caught.value.param == "extra_kwargs"


def renamed(path: Path, architecture: str, **tensors: Tensor) -> Path:
    """The checkpoint under another architecture's name, with further tensors."""
    config, file = path / "config.json", path / "model.safetensors"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"architectures": [architecture]})
    )
    own = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(load_file(file) | own, file)
    return path


def sparse_modules(path: Path, **settings: str) -> None:
    """The files of sentence-transformers' SparseEncoder, of both generations' first module."""
    modules = "sentence_transformers.sparse_encoder.models."
    kinds = ["MLMTransformer", "SpladePooling"]
    folders = ["", "1_SpladePooling"]
    listed = [{"type": modules + k, "path": f} for k, f in zip(kinds, folders, strict=True)]
    (path / "modules.json").write_text(json.dumps(listed))
    (path / folders[1]).mkdir()
    stated = {"pooling_strategy": "max", "activation_function": "relu"} | settings
    (path / folders[1] / "config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "DistilBertForMaskedLM", "by name"])
@torch.inference_mode()
def test_splade_weighs_every_word(kind: str, tmp_path: Path) -> None:
    reference = make_encoder("BertForMaskedLM" if kind == "by name" else kind)
    reference.save_pretrained(tmp_path)
    if kind == "by name":
        renamed(tmp_path, "BertSpladeSparseEmbeddingModel")
    else:
        sparse_modules(tmp_path)
    with engine(tmp_path) as llm:
        found = answers(llm, prompts(), PoolingParams(task="embed"))
    for ids, weights in zip(prompts(), found, strict=True):
        logits = reference(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(weights, logits.relu().log1p().amax(0), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("BertForMaskedLM", {"pooling_strategy": "sum"}, "pooling_strategy is 'sum'"),
        ("BertForMaskedLM", {"activation_function": "log1p_relu"}, "weighed by relu alone"),
        ("BertModel", {}, "BertModel gives no scores of words"),
        ("RobertaModel", {}, "RobertaForMaskedLM gives no scores of words"),
    ],
)
def test_other_sparse_vectors_are_refused(
    case: str, settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    make_encoder(case).save_pretrained(tmp_path)
    if case == "RobertaModel":
        renamed(tmp_path, "RobertaForMaskedLM")
    sparse_modules(tmp_path, **settings)
    with pytest.raises(UsageError, match=message):
        engine(tmp_path)


@pytest.mark.parametrize("is_beside", [False, True], ids=["in the file", "pickles beside it"])
@torch.inference_mode()
def test_bge_m3_has_three_outputs(is_beside: bool, tmp_path: Path) -> None:
    reference = make_encoder("XLMRobertaModel")
    reference.save_pretrained(tmp_path)
    torch.manual_seed(4)
    sparse, bias, colbert = torch.randn(1, 48), torch.randn(1), torch.randn(48, 48)
    layers = {
        "sparse_linear": {"weight": sparse, "bias": bias},
        "colbert_linear": {"weight": colbert, "bias": torch.zeros(48)},
    }
    more = {f"{k}__{part}": x for k, layer in layers.items() for part, x in layer.items()}
    renamed(tmp_path, "BgeM3EmbeddingModel", **({} if is_beside else more))
    if is_beside:
        for name, layer in layers.items():
            torch.save(layer, tmp_path / f"{name}.pt")
    batch = [[0, *ids, 2] for ids in prompts()] + [[7, 8, 9], [0, 2]]
    with engine(tmp_path) as llm:
        dense = answers(llm, batch, PoolingParams(task="embed"))
        weights = answers(llm, batch, PoolingParams(task="token_classify"))
        vectors = answers(llm, batch, PoolingParams(task="token_embed"))
        both = answers(llm, batch, PoolingParams(task="embed&token_classify"))
    for found, one, few in zip(both, dense, weights, strict=True):
        assert torch.equal(found, torch.cat([one, few.flatten()]))
    for ids, one, few, many in zip(batch, dense, weights, vectors, strict=True):
        hidden, _ = expected(reference, ids)
        torch.testing.assert_close(one, F.normalize(hidden[0], dim=0), atol=1e-4, rtol=0)
        is_text = ids[0] == 0
        rows = hidden[1:-1] if is_text else hidden
        want = F.linear(rows, sparse, bias).relu()
        torch.testing.assert_close(few.view(-1, 1), want, atol=1e-4, rtol=0)
        rows = F.normalize(F.linear(hidden[1:] if is_text else hidden, colbert), dim=1)
        torch.testing.assert_close(many, rows, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_colbert_has_short_vectors_of_tokens(tmp_path: Path) -> None:
    reference = make_encoder("BertModel")
    reference.save_pretrained(tmp_path)
    torch.manual_seed(4)
    linear = torch.randn(24, 48)
    renamed(tmp_path, "HF_ColBERT", linear__weight=linear)
    with engine(tmp_path, hf_overrides={"colbert_dim": 24}) as llm:
        found = answers(llm, prompts(), PoolingParams())
    for ids, vectors in zip(prompts(), found, strict=True):
        want = F.normalize(F.linear(expected(reference, ids)[0], linear), dim=1)
        torch.testing.assert_close(vectors, want, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_jina_s_reranker_answers_at_its_marks(tmp_path: Path) -> None:
    reference = make_model("qwen3", vocab_size=151672, num_hidden_layers=1)
    reference.save_pretrained(tmp_path)
    torch.manual_seed(4)
    first, last = torch.randn(24, 48), torch.randn(512, 24) / 8
    renamed(tmp_path, "JinaForRanking", projector__0__weight=first, projector__2__weight=last)
    ids, seen = [5, 6, 151670, 7, 8, 9, 151670, 10, 151671], []
    for options in ({"max_num_batched_tokens": 4, "max_num_seqs": 4}, {}):
        with engine(tmp_path, max_model_len=64, **options) as llm:
            seen.append(answers(llm, [ids, ids[1:]], PoolingParams(use_activation=False)))
    assert all(map(torch.equal, *seen))
    hidden = reference.model(torch.tensor([ids])).last_hidden_state[0][[2, 6, 8]]
    want = F.linear(F.linear(hidden, first).relu(), last)
    torch.testing.assert_close(seen[0][0], want, atol=1e-4, rtol=1e-4)
