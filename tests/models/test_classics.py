"""Checkpoints of the first generations under their old names, and what transformers leaves out."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from tests.models.checkpoints import make_model, save
from tests.models.runner import PagedRunner, load
from tests.models.test_families import expected, ids_of
from vllm_lite.config.checkpoints.checkpoint import read_facts
from vllm_lite.errors import CheckpointError

RW = {
    "hidden_size": "n_embed",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "num_kv_heads": "n_head_kv",
}
STABLELM = {"layer_norm_eps": "norm_eps"}
GROUPED = {"new_decoder_architecture": True, "num_kv_heads": 2}


def check(reference: PreTrainedModel, path: Path) -> None:
    got = PagedRunner(load(path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "changes", "architecture", "names"),
    [
        ("falcon", GROUPED, "RWForCausalLM", RW),
        ("stablelm", {"layer_norm_eps": 1e-3}, "StableLMEpochForCausalLM", STABLELM),
        ("mpt", {}, "MPTForCausalLM", {}),
        ("bloom", {}, None, {"hidden_size": "n_embed"}),
    ],
)
def test_old_names(
    family: str,
    changes: dict[str, Any],
    architecture: str | None,
    names: dict[str, str],
    tmp_path: Path,
) -> None:
    reference = make_model(family, **changes)
    save(reference, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    renamed = {names.get(name, name): value for name, value in config.items()}
    if architecture:
        renamed["architectures"] = [architecture]
    (tmp_path / "config.json").write_text(json.dumps(renamed))
    check(reference, tmp_path)


def test_mpt_may_have_biases_and_steeper_slopes(tmp_path: Path) -> None:
    """transformers' class has no biases, and one set of slopes: both are given to it here."""
    reference = make_model("mpt", no_bias=False, attn_config={"alibi_bias_max": 4})
    torch.manual_seed(5)
    for module in reference.transformer.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.bias = nn.Parameter(torch.randn(module.weight.shape[0]) / 4)
    slopes = reference.transformer.build_mpt_alibi_tensor
    reference.transformer.build_mpt_alibi_tensor = partial(slopes, alibi_bias_max=4)
    check(reference, save(reference, tmp_path))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "mpt",
            {"attn_config": {"alibi": False}},
            "alibi is False in its configuration; MPT runs here with True",
        ),
        ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln is True in its configuration"),
        ("mpt", {"attn_config": [8]}, r"attn_config is \[8\] in its configuration, not an object"),
        ("mpt", {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'"),
        ("mpt", {"expansion_ratio": "4"}, "expansion_ratio is '4'"),
        ("gptj", {"rotary_dim": None}, "rotary_dim is None"),
        ("gptj", {"rotary_dim": 14}, "rotary size is 14; it must be even"),
        ("codegen", {"n_head": 6}, "6 heads are not the 4 equal parts"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 2]]}, "does not name 2 layers"),
        ("gpt_neo", {"attention_types": 7}, "attention_types is 7"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "may change what the model"),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": "2"}, "num_kv_heads is '2'"),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3}, "3 key-value heads"),
        ("opt", {"word_embed_proj_dim": "512"}, "word_embed_proj_dim is '512'"),
        ("opt", {"activation_function": "sine"}, "'sine' is not supported"),
    ],
)
def test_settings_that_no_model_has_are_refused(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = save(make_model(family), tmp_path) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gptj", {"rotary": True, "scale_attn_weights": True, "gradient_checkpointing": False}),
        ("codegen", {"n_ctx": 2048, "scale_attn_weights": True, "n_inner": None}),
        ("gpt_neo", {"attention_layers": ["local", "local"], "embed_dropout": 0.1}),
        ("gpt_bigcode", {"inference_runner": 2, "pad_key_length": True, "n_inner": 192}),
        ("opt", {"prefix": "</s>", "layerdrop": 0.1, "learned_embeddings": True}),
        ("phi", {"rope_scaling": None, "embd_pdrop": 0.1, "partial_rotary_factor": 0.5}),
        ("falcon", {"apply_residual_connection_post_layernorm": False, "ff_factor": 4}),
        ("xglm", {"decoder_start_token_id": 2, "activation_dropout": 0.1}),
        ("bloom", {"offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True}),
        ("mpt", {"init_config": {"name": "kaiming"}, "tokenizer_name": "neox", "verbose": 1}),
    ],
)
def test_fields_of_published_checkpoints_are_known(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    config = save(make_model(family), tmp_path) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    assert read_facts(str(tmp_path)).num_layers == 2
