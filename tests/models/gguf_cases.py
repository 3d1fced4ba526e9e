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
_GPT_OSS = {**YARN, "truncate": False}
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
    # llama.cpp has the pattern, the sparse layers and ranks built in, and no cache shared in layers
    # before the 21st.
    "gemma3n-published": (
        "gemma3n",
        {
            "num_hidden_layers": 11,
            "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 2
            + ["sliding_attention"],
            "num_kv_shared_layers": 0,
            "intermediate_size": 1280,
            "activation_sparsity_pattern": [0.95] * 10 + [0.0],
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 131,
            "laurel_rank": 64,
        },
    ),
    "gemma3n-widths": (
        "gemma3n",
        {
            "intermediate_size": [40, 56, 24, 40, 72],
            "activation_sparsity_pattern": [0.95, 0.6, 0.0, 0.0, 0.3],
            "altup_active_idx": 3,
            "final_logit_softcapping": 3.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
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
    "gemma4-mixture-published": (
        "gemma4",
        {
            "num_hidden_layers": 3,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
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
    "qwen2_moe-published": ("qwen2_moe", {"norm_topk_prob": False}),
    "olmoe-published": ("olmoe", {"norm_topk_prob": False, "num_key_value_heads": 4}),
    "olmoe-tied": ("olmoe", {"num_experts_per_tok": 2, "tie_word_embeddings": True}),
    "deepseek_v2-scaled": (
        "deepseek_v2",
        {
            "q_lora_rank": None,
            "n_routed_experts": 12,
            "routed_scaling_factor": 1.7,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek_v3-scaled": (
        "deepseek_v3",
        {
            "first_k_dense_replace": 1,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-one-key": ("deepseek", {"num_key_value_heads": 1, "num_hidden_layers": 3}),
    "gpt_oss-published": (
        "gpt_oss",
        {
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 7,
            "rope_parameters": _GPT_OSS,
        },
    ),
    "dbrx-published": (
        "dbrx",
        {
            "attn_config": {"kv_n_heads": 4, "clip_qkv": 0.7, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 5, "moe_top_k": 2},
        },
    ),
    "ernie4_5_moe-some": (
        "ernie4_5_moe",
        {"num_hidden_layers": 4, "moe_layer_interval": 2, "moe_k": 2, "rms_norm_eps": 1e-3},
    ),
    "mamba-untied": ("mamba", {"state_size": 7, "conv_kernel": 3, "tie_word_embeddings": False}),
    "bamba-whole-heads-tied": (
        "bamba",
        {
            "attn_layer_indices": [0, 2],
            "mamba_n_groups": 1,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0},
            "tie_word_embeddings": True,
        },
    ),
    "nemotron_h-usual-heads": (
        "nemotron_h",
        {"mamba_num_heads": 4, "layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    ),
    "nemotron_h-experts-usual-heads": (
        "nemotron_h",
        {
            **CASES["nemotron_h-experts"][1],
            "mamba_num_heads": 8,
            "head_dim": 12,
        },
    ),
    "lfm2-published": ("lfm2", {"conv_L_cache": 2, "num_key_value_heads": 4}),
    "falcon_h1-factors": (
        "falcon_h1",
        {
            "head_dim": 12,
            "embedding_multiplier": 1.7,
            "lm_head_multiplier": 0.8,
            "mlp_multipliers": [0.9, 1.2],
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.6,
            "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.9,
        },
    ),
    "falcon_h1-normed-in-groups": (
        "falcon_h1",
        {
            "head_dim": 20,
            "mamba_d_ssm": 72,
            "mamba_d_head": 18,
            "mamba_n_heads": 4,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
        },
    ),
    "phimoe-published": (
        "phimoe",
        {"router_jitter_noise": 0.01, "attention_bias": True, "lm_head_bias": True},
    ),
    "qwen3_5-wide": (
        "qwen3_5",
        {"hidden_size": 64, "intermediate_size": 96, "linear_value_head_dim": 32},
    ),
    "gpt_oss-wide": (
        "gpt_oss",
        {
            "hidden_size": 64,
            "intermediate_size": 32,
            "head_dim": 16,
            "sliding_window": 9,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "deepseek_v2-wide": (
        "deepseek_v2",
        {
            "hidden_size": 64,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "moe_intermediate_size": 32,
            "rope_parameters": {"rope_type": "default"},
        },
    ),
    "exaone_moe-published": (
        "exaone_moe",
        {
            "num_hidden_layers": 5,
            "num_experts": 6,
            "num_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention"],
        },
    ),
    "mimo_v2_flash-published": (
        "mimo_v2_flash",
        {"v_head_dim": 16, "norm_topk_prob": True, "n_group": 1, "topk_group": 1},
    ),
    "kimi_linear-published": ("kimi_linear", {}),
    "kimi_linear-latent-queries": (
        "kimi_linear",
        {
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", *["linear_attention"] * 2, "full_attention"],
            "q_lora_rank": 20,
            "num_shared_experts": 2,
            "linear_head_dim": 9,
            "linear_conv_kernel_dim": 3,
            "routed_scaling_factor": 1.7,
        },
    ),
    "qwen3_next-sparse": (
        "qwen3_next",
        {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_value_head_dim": 13},
    ),
}
GGUF_CASES = {**CASES, **FURTHER}


_RENAMED = {"MptForCausalLM": "MPTForCausalLM"}


def _mimo_fields(hparams: dict[str, Any]) -> dict[str, Any]:
    """MiMo's fields before transformers had the model; its further layers are not written here."""
    rope = hparams["rope_parameters"]
    whole, local = rope["full_attention"], rope["sliding_attention"]
    return {
        "swa_head_dim": hparams["head_dim"],
        "swa_v_head_dim": hparams["v_head_dim"],
        "swa_num_attention_heads": hparams["num_attention_heads"],
        "swa_num_key_value_heads": 2 * hparams["num_key_value_heads"],
        "hybrid_layer_pattern": [int(x == "sliding_attention") for x in hparams["layer_types"]],
        "layernorm_epsilon": hparams["rms_norm_eps"],
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_theta": whole["rope_theta"],
        "swa_rope_theta": local["rope_theta"],
        "partial_rotary_factor": whole["partial_rotary_factor"],
        "rope_parameters": {"rope_type": "default", **whole},
    }


def _published_blocks(hparams: dict[str, Any]) -> dict[str, Any]:
    """Fields of mixtures and of layers of several kinds as published configurations have them."""
    kind, count = hparams.get("model_type"), hparams.get("num_hidden_layers")
    if kind == "bamba":
        part = hparams["rope_parameters"].get("partial_rotary_factor", 0.5)
        head_size = hparams["hidden_size"] // hparams["num_attention_heads"]
        return {**hparams, "attn_rotary_emb": int(head_size * part)}
    if kind == "minimax_m2":
        part = hparams["rope_parameters"].get("partial_rotary_factor", 1.0)
        return {**hparams, "rotary_dim": int(hparams["head_dim"] * part)}
    if kind == "phimoe":
        length = hparams["rope_parameters"].get("original_max_position_embeddings")
        return {"original_max_position_embeddings": length or 128, **hparams}
    if kind == "exaone_moe":
        return {**hparams, "scoring_func": "sigmoid"}
    if kind == "mimo_v2_flash":
        return {**hparams, **_mimo_fields(hparams)}
    if kind == "glm4_moe_lite":
        return {**hparams, "first_k_dense_replace": 1}
    if kind == "hunyuan_v1_moe":
        experts = hparams["moe_topk"]
        top = experts if isinstance(experts, list) else [experts] * count
        widths = [hparams["intermediate_size"]] * count
        lists = {"moe_topk": top, "moe_intermediate_size": widths, "num_shared_expert": [1] * count}
        return {**hparams, **lists}
    if kind == "granitemoehybrid":
        old = {"linear_attention": "mamba", "full_attention": "attention"}
        return {**hparams, "layer_types": [old.get(x, x) for x in hparams["layer_types"]]}
    if kind == "nemotron_h":
        letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
        kinds = hparams.get("layers_block_type") or hparams["layer_types"]
        pattern = "".join(letters[x] for x in kinds)
        new = {**hparams, "num_hidden_layers": len(pattern), "layers_block_type": None}
        new["hybrid_override_pattern"] = pattern
        return new if "E" in pattern else {k: v for k, v in new.items() if "num_exp" not in k}
    return hparams


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
    hparams = _published_blocks(hparams)
    if names:
        hparams = {**hparams, "architectures": names}
    return {**{key: value for key, value in older.items() if value is not None}, **hparams}
