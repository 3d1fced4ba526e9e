"""Soft caps, ALiBi's slopes and sinks of a model's attention, whole and shared by ranks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tests.models.checkpoints import make_model, save
from tests.models.families import CASES
from tests.models.runner import PagedRunner, load
from tests.models.test_families import expected, ids_of
from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import Shard, tensor_parallel
from vllm_lite.distributed.shared_memory import SharedMemoryGroup
from vllm_lite.errors import UsageError
from vllm_lite.kernels.gpu import sdpa
from vllm_lite.layers import attention
from vllm_lite.layers.score_terms import ScoreTerms, alibi_slopes
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, decoder_spec

TERMS: list[dict[str, Any]] = [
    {"softcap": 1.5},
    {"alibi_slopes": alibi_slopes(4)},
    {"has_sinks": True},
    {"softcap": 3.0, "alibi_slopes": alibi_slopes(4, 2.0), "has_sinks": True},
]


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _: None, scaling: float, **__: Any
) -> tuple[Tensor, None]:
    """transformers' attention [1, H, T, D] with the terms of `module`."""
    group, length = module.num_key_value_groups, query.shape[2]
    key, value = (rows.repeat_interleave(group, 1) for rows in (key, value))
    scores = query @ key.mT * scaling
    distances = torch.arange(length) - torch.arange(length)[:, None]
    if cap := module.terms.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    if slopes := module.terms.get("alibi_slopes"):
        scores = scores + torch.tensor(slopes)[:, None, None] * distances
    scores = scores.masked_fill(distances > 0, -torch.inf)
    if module.terms.get("has_sinks"):
        scores = torch.cat([scores, module.sinks[None, :, None, None].expand(1, -1, length, 1)], -1)
    return (scores.softmax(-1)[..., :length] @ value).transpose(1, 2), None


@pytest.fixture(params=TERMS, ids=["cap", "alibi", "sinks", "all"])
def want(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The logits of the model that is written to tmp_path, by transformers."""

    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = decoder_spec(facts)
        layers = []
        for layer in plain.layers:
            assert isinstance(layer.mixer, AttentionSpec)
            layers.append(replace(layer, mixer=replace(layer.mixer, **request.param)))
        return replace(plain, layers=tuple(layers))

    monkeypatch.setattr(LlamaForCausalLM, "spec", staticmethod(spec))
    model = make_model("llama")
    save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.terms, layer.self_attn.sinks = request.param, torch.randn(4)
        if "has_sinks" in request.param:
            tensors[f"model.layers.{i}.self_attn.sinks"] = layer.self_attn.sinks
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model.config._attn_implementation = "terms"
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "terms", attend)
    return expected(model, ids_of(1))


def test_logits_in_chunks(want: Tensor, tmp_path: Path) -> None:
    runner, ids = PagedRunner(load(tmp_path), is_recorded=True), ids_of(1)
    parts = [runner.step({"a": part})["a"] for part in (ids[:5], ids[5:40], ids[40:41], ids[41:])]
    torch.testing.assert_close(torch.cat(parts), want, atol=1e-4, rtol=0)


def test_ranks_share_them_by_heads(want: Tensor, tmp_path: Path) -> None:
    fd, models = os.memfd_create("ranks"), []
    for rank in range(2):
        with tensor_parallel(SharedMemoryGroup(fd, rank, 2)):
            models.append(load(tmp_path))
    os.close(fd)
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(lambda m: PagedRunner(m).step({"a": ids_of(1)})["a"], models):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 8, 12, 71])
def test_slopes_are_those_of_bloom_and_mpt(num_heads: int) -> None:
    ours = torch.tensor(alibi_slopes(num_heads))
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)
    torch.testing.assert_close(ours, bloom[:, 0, 1])
    mpt = build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max=5)
    steeper = torch.tensor(alibi_slopes(num_heads, 5.0))
    torch.testing.assert_close(steeper, mpt[:, 0, 1] - mpt[:, 0, 0])


def test_a_backend_without_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ops", lambda: sdpa)
    attention.attention(1.0, None, ScoreTerms(heads=Shard.whole(4), softcap=3.0))
    terms = ScoreTerms(heads=Shard.whole(4), has_sinks=True)
    with pytest.raises(UsageError, match=r"needs sinks, which .*use TRITON_ATTN"):
        attention.attention(1.0, None, terms)


@pytest.mark.parametrize("family", ["mimo_v2_flash", "deepseek_v2"])
def test_values_of_another_size_are_refused_at_start(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(make_model(family, **CASES[family][1]), tmp_path)
    monkeypatch.setattr(attention, "ops", lambda: sdpa)
    with pytest.raises(UsageError, match=r"values of a size of their own.*use TRITON_ATTN"):
        load(path)
