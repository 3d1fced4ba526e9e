"""Embedders, rerankers and reward models by the names and fields of their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.models.checkpoints import make_model, save
from tests.models.test_pooling_decoders import (
    RAW,
    answers,
    check,
    headed,
    tokens_of,
    with_tensors,
)
from vllm_lite import PoolingParams

SHARES = PoolingParams()


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt2", "mistral", "phi3", "qwen2"])
def test_a_base_model_embeds_by_its_last_token(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    path = save(model.base_model, tmp_path)
    name = json.loads((path / "config.json").read_text())["architectures"][0]
    assert not name.endswith(("ForCausalLM", "LMHeadModel"))
    options: dict[str, Any] = {"pooler_config": {"seq_pooling_type": "LAST"}}
    found = answers(path, "embed", SHARES, **options)
    check(found, lambda ids: F.normalize(model.base_model(ids).last_hidden_state[0, -1], dim=0))


def test_embeddinggemma_has_two_layers_behind_the_mean(tmp_path: Path) -> None:
    model = make_model("gemma3", use_bidirectional_attention=True)
    path, size = save(model.base_model, tmp_path), model.config.hidden_size
    torch.manual_seed(2)
    weights = {"2_Dense": torch.randn(64, size), "3_Dense": torch.randn(size, 64)}
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    folders = ["", "1_Pooling", *weights, "4_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    mean = {"word_embedding_dimension": size, "pooling_mode_mean_tokens": True}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(mean))
    for folder, weight in weights.items():
        (path / folder).mkdir()
        stated = {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (path / folder / "config.json").write_text(json.dumps(stated))
        save_file({"linear.weight": weight}, path / folder / "model.safetensors")

    def want(ids: Tensor) -> Tensor:
        hidden = model.base_model(ids).last_hidden_state[0].mean(0)
        return F.normalize(weights["3_Dense"] @ (weights["2_Dense"] @ hidden), dim=0)

    check(answers(path, "embed", SHARES), want)


def test_qwen3_s_reranker_compares_yes_with_no(tmp_path: Path) -> None:
    model = make_model("qwen3", tie_word_embeddings=True)
    path = save(model, tmp_path / "original")
    vocabulary = {"model": {"vocab": {"no": 11, "yes": 42}}}
    (path / "tokenizer.json").write_text(json.dumps(vocabulary))
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }

    def want(ids: Tensor) -> Tensor:
        return model(ids).logits[0, -1, [11, 42]].softmax(-1)[1:]

    found = answers(path, "classify", SHARES, hf_overrides=overrides)
    check(found, want)

    # The same as a head of one class, which others have made of it.
    head = model.get_input_embeddings().weight[[42]] - model.get_input_embeddings().weight[[11]]
    path = save(model, tmp_path / "converted")
    tensors = {"score.weight": head.detach().clone()}
    with_tensors(path, "Qwen3ForSequenceClassification", tensors, num_labels=1)
    check(answers(path, "classify", SHARES), want)


def test_a_bidirectional_llama_classifies_by_the_mean(tmp_path: Path) -> None:
    model = headed("llama", "LlamaForSequenceClassification", num_labels=3, pad_token_id=0)
    path = save(model, tmp_path)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["LlamaBidirectionalForSequenceClassification"], "pooling": "avg"}
    (path / "config.json").write_text(json.dumps(config))

    def want(ids: Tensor) -> Tensor:
        everything = torch.zeros(1, 1, ids.shape[1], ids.shape[1])
        hidden = model.base_model(ids, attention_mask=everything).last_hidden_state[0]
        return model.score(hidden.mean(0)).softmax(-1)

    check(answers(path, "classify", SHARES), want)


def test_internlm2_rewards_each_token(tmp_path: Path) -> None:
    model = make_model("internlm2")
    torch.manual_seed(3)
    head = torch.randn(1, model.config.hidden_size)
    path = save(model, tmp_path)
    with_tensors(path, "InternLM2ForRewardModel", {"v_head.weight": head})
    found = answers(path, "token_classify", RAW)
    check(found, lambda ids: F.linear(model.base_model(ids).last_hidden_state[0], head))


@pytest.mark.parametrize("name", ["LlamaForTokenClassification", "Qwen3ForTokenClassification"])
def test_each_token_has_its_classes(name: str, tmp_path: Path) -> None:
    model = headed(name.split("For")[0].lower(), name, num_labels=3)
    check(answers(save(model, tmp_path), "token_classify"), lambda ids: tokens_of(model, ids))
