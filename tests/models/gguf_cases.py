"""Checkpoints that llama.cpp's converter takes, beside those of tests/models/families."""

from __future__ import annotations

from typing import Any

from tests.models.families import CASES
from tests.models.families.family import YARN

_MISTRAL3 = {**YARN, "llama_4_scaling_beta": 0.7, "mscale": 1.0, "mscale_all_dim": 1.0}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
}
# What files cannot say, or what the converter refuses, is as in published models.
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "ministral3-published": ("ministral3", {"rope_parameters": _MISTRAL3}),
    "smollm3-published": (
        "smollm3",
        {"num_hidden_layers": 5, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
    ),
    "bitnet-tied": ("bitnet", {"tie_word_embeddings": True, "hidden_act": "silu"}),
    "minicpm3-published": (
        "minicpm3",
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    ),
    "cohere-by-head-tied": ("cohere", {"use_qk_norm": True, "num_key_value_heads": 4}),
    "cohere2-plain": ("cohere2", {"num_key_value_heads": 1}),
    "gemma-tied": ("gemma", {"num_key_value_heads": 4, "rms_norm_eps": 1e-3}),
    "gemma2-published": (
        "gemma2",
        {
            "num_hidden_layers": 3,
            "layer_types": None,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3-published": (
        "gemma3",
        {
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 20,
            "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "gemma4-published": (
        "gemma4",
        {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4-keys-are-values-plain": (
        "gemma4",
        {
            "num_hidden_layers": 4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "final_logit_softcapping": 30.0,
        },
    ),
    "glm4-biases": ("glm4", {"attention_bias": True, "rms_norm_eps": 1e-3}),
    "stablelm-by-head": (
        "stablelm",
        {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "falcon-40b-plain": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False},
    ),
    "mpt-clip": ("mpt", {"num_attention_heads": 3, "attn_config": {"clip_qkv": 0.6}}),
    "olmo-clip-plain": ("olmo", {"clip_qkv": 0.8, "num_key_value_heads": 4}),
    "glm-usual-heads": ("glm", {"head_dim": 12, "num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    "llama4-published": (
        "llama4",
        {
            "num_hidden_layers": 5,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "rms_norm_eps": 1e-6,
        },
    ),
    "phi-wide": ("phi", {"intermediate_size": 192, "num_key_value_heads": 4}),
    "starcoder2-plain": ("starcoder2", {"use_bias": False, "num_key_value_heads": 1}),
    "gpt_neox-rotary-half": (
        "gpt_neox",
        {
            "use_parallel_residual": False,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        },
    ),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "phi3-longrope": (
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32},
    ),
    "phi3-short": (
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 128},
    ),
}
GGUF_CASES = {**CASES, **FURTHER}


_RENAMED = {"MptForCausalLM": "MPTForCausalLM"}


def published(hparams: dict[str, Any]) -> dict[str, Any]:
    """A configuration with fields of published ones that the converter reads."""
    rope = hparams.get("rope_parameters") or {}
    names = [_RENAMED.get(name, name) for name in hparams.get("architectures") or ()]
    older = {
        "n_ctx": hparams.get("n_positions"),
        "rotary_pct": rope.get("partial_rotary_factor", 1.0),
        "rotary_dim": hparams.get("rotary_dim"),
    }
    if hparams.get("multi_query") and not hparams.get("new_decoder_architecture"):
        hparams = {**hparams, "num_kv_heads": 1}
    for block in hparams.get("block_configs") or ():
        block["attention"].setdefault("replace_with_linear", False)
        width = block["ffn"]["intermediate_size"]
        # The converter's own formula rounds up to whole 256s.
        block["ffn"]["ffn_mult"] = width and 1.5 * (width - 1) / hparams["hidden_size"]
    if names:
        hparams = {**hparams, "architectures": names}
    return {**{key: value for key, value in older.items() if value is not None}, **hparams}
