"""Mixtures of experts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.models.families.family import WINDOWED, YARN, Family, named

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
}
PHI_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 128,
}
BIASED = {"num_experts_per_tok": 4, "moe_intermediate_size": 24}


def with_choice_biases(model: Any) -> None:
    """Draw what is a buffer, and zero, in a new model."""
    for name, buffer in model.named_buffers():
        if "e_score_correction_bias" in name:
            buffer.normal_(0.0, 0.25)


def renormalized(model: Any) -> None:
    """Divide weights by their sum where the configuration says so, as vLLM does.

    Transformers does not read norm_topk_prob of DeepSeek-V2; no published model sets it.
    """
    for layer in model.model.layers if model.config.norm_topk_prob else ():
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.forward = partial(_renormalized, layer.mlp.gate.forward, model.config)


def _renormalized(route: Any, config: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits, weights, ids = route(x)
    shares = weights / weights.sum(-1, keepdim=True)
    return logits, shares * config.routed_scaling_factor, ids


def as_deepseek(model: Any) -> None:
    """Take shares of all experts in a model of three layers, whose first has none."""
    if len(model.model.layers) < 3:
        return
    for layer in model.model.layers:
        router = layer.block_sparse_moe.router
        router.forward = partial(_unnormalized, router)
    model.model.layers[0].block_sparse_moe.forward = torch.zeros_like


def _unnormalized(router: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.nn.functional.linear(x, router.weight)
    shares, ids = logits.softmax(-1).topk(router.top_k, -1)
    return logits, shares, ids


def deepseek_files(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """DeepSeek's names of GraniteMoeShared's tensors and fields."""
    is_odd = config["num_hidden_layers"] == 3
    config |= {
        "architectures": ["DeepseekForCausalLM"],
        "n_routed_experts": config.pop("num_local_experts"),
        "moe_intermediate_size": config["intermediate_size"],
        "intermediate_size": config["shared_intermediate_size"],
        "n_shared_experts": config.pop("shared_intermediate_size") // config["intermediate_size"],
        "norm_topk_prob": not is_odd,
        "first_k_dense_replace": int(is_odd),
        "moe_layer_freq": 1,
        "scoring_func": "softmax",
    }
    for name in ("attention", "embedding", "residual"):
        del config[f"{name}_multiplier"]
    del config["logits_scaling"]
    renamed = {}
    for name, values in tensors.items():
        is_dense = is_odd and name.startswith("model.layers.0.")
        layer, block, rest = name.partition(".block_sparse_moe.")
        if block:
            renamed |= {} if is_dense else _expert_files(layer, rest, values)
        elif ".shared_mlp." in name:
            layer, _, rest = name.partition(".shared_mlp.")
            mlp = f"{layer}.mlp" if is_dense else f"{layer}.mlp.shared_experts"
            renamed |= _mlp_files(mlp, rest, values)
        else:
            renamed[name] = values
    return renamed


def _expert_files(layer: str, rest: str, values: Tensor) -> dict[str, Tensor]:
    if rest.startswith("router"):
        return {f"{layer}.mlp.gate.weight": values}
    named: dict[str, Tensor] = {}
    for i, expert in enumerate(values):
        named |= _mlp_files(f"{layer}.mlp.experts.{i}", rest, expert)
    return named


def _mlp_files(mlp: str, rest: str, values: Tensor) -> dict[str, Tensor]:
    if rest == "output_linear.weight":
        return {f"{mlp}.down_proj.weight": values.clone()}
    gate, up = values.chunk(2)
    return {f"{mlp}.gate_proj.weight": gate.clone(), f"{mlp}.up_proj.weight": up.clone()}


FAMILIES = {
    "mixtral": Family(
        "MixtralForCausalLM",
        {"num_local_experts": 5},
        cases={
            "": {"head_dim": 10},
            "window": {
                "sliding_window": 9,
                "num_experts_per_tok": 3,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "phimoe": Family(
        "PhimoeForCausalLM",
        {
            "num_local_experts": 5,
            # Wide, so that experts are near each other.
            "router_jitter_noise": 0.3,
            "intermediate_size": 24,
        },
        rewrite=named("PhiMoEForCausalLM"),
        cases={
            "": {
                "num_local_experts": 16,
                "attention_bias": True,
                "lm_head_bias": True,
                "rope_parameters": PHI_LONGROPE,
            },
            "odd": {"num_key_value_heads": 1, "sliding_window": 9, "tie_word_embeddings": True},
        },
    ),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
        },
        cases={
            "": {"norm_topk_prob": True},
            "odd": {
                **WINDOWED,
                "max_window_layers": 1,
                "num_hidden_layers": 3,
                "mlp_only_layers": [1],
                "qkv_bias": False,
                "num_key_value_heads": 4,
                "shared_expert_intermediate_size": 33,
            },
        },
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
        },
        cases={
            "": {},
            "one-of-many": {"num_experts": 40, "num_experts_per_tok": 1, "norm_topk_prob": False},
            "all": {
                "num_experts": 3,
                "moe_intermediate_size": 32,
                "hidden_act": "gelu",
                **WINDOWED,
            },
            "some-layers-dense": {
                "num_hidden_layers": 4,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [1],
            },
        },
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        {"num_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 24},
        cases={
            "": {"norm_topk_prob": True},
            "odd": {
                "num_experts_per_tok": 2,
                "attention_bias": True,
                "num_key_value_heads": 4,
                "tie_word_embeddings": True,
            },
        },
    ),
    "flex_olmo": Family(
        "FlexOlmoForCausalLM",
        {"num_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 24, "pad_token_id": None},
        cases={
            "": {"norm_topk_prob": True, "attention_bias": True},
            "odd": {
                "num_experts": 5,
                "num_experts_per_tok": 1,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "granite_moe": Family(
        "GraniteMoeForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 5, "intermediate_size": 24},
        cases={
            "": {**MULTIPLIERS, "num_experts_per_tok": 2},
            "odd": {"attention_bias": True, "hidden_act": "gelu"},
        },
    ),
    "granite_moe_shared": Family(
        "GraniteMoeSharedForCausalLM",
        {"num_local_experts": 6, "num_experts_per_tok": 6, "intermediate_size": 24},
        cases={
            "": {**MULTIPLIERS, "shared_intermediate_size": 40, "num_experts_per_tok": 3},
            "odd": {
                "num_experts_per_tok": 1,
                "shared_intermediate_size": 33,
                "tie_word_embeddings": True,
            },
        },
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        {**BIASED, **LATENTS, "n_routed_experts": 6},
        prepare=renormalized,
        cases={
            "": {"first_k_dense_replace": 1, "n_shared_experts": 1},
            "normed": {"norm_topk_prob": True, "routed_scaling_factor": 1.7},
            "groups": {
                "q_lora_rank": None,
                "n_routed_experts": 12,
                "n_group": 4,
                "topk_group": 2,
                "topk_method": "group_limited_greedy",
                "routed_scaling_factor": 1.7,
                "rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
            },
        },
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        {**BIASED, **LATENTS, "n_routed_experts": 12, "n_group": 4, "topk_group": 2},
        prepare=with_choice_biases,
        cases={
            "": {"first_k_dense_replace": 1, "rope_parameters": {**YARN, "mscale_all_dim": 1.0}},
            "odd": {
                "first_k_dense_replace": 0,
                "num_attention_heads": 3,
                "num_key_value_heads": 3,
                "kv_lora_rank": 17,
                "q_lora_rank": None,
                "qk_nope_head_dim": 7,
                "v_head_dim": 9,
                "attention_bias": True,
                "rope_interleave": False,
                "norm_topk_prob": False,
                "tie_word_embeddings": True,
            },
        },
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteForCausalLM",
        {**BIASED, **LATENTS, "n_routed_experts": 7},
        prepare=with_choice_biases,
        cases={
            "": {},
            "odd": {
                "num_hidden_layers": 3,
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "qk_rope_head_dim": 10,
                "n_shared_experts": 2,
            },
        },
    ),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        {**BIASED, "n_routed_experts": 4, "n_shared_experts": 1},
        prepare=with_choice_biases,
        cases={
            "": {
                "n_routed_experts": 12,
                "n_group": 4,
                "topk_group": 2,
                "attention_bias": True,
                "use_qk_norm": True,
            },
            "odd": {
                "first_k_dense_replace": 2,
                "n_routed_experts": 7,
                "num_experts_per_tok": 3,
                "num_hidden_layers": 3,
                "n_shared_experts": 2,
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.7,
                "head_dim": 24,
            },
        },
    ),
    "dots1": Family(
        "Dots1ForCausalLM",
        {**BIASED, "n_routed_experts": 8, "n_shared_experts": 2, "sliding_window": None},
        prepare=with_choice_biases,
        cases={
            "": {"first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
            "odd": {
                "head_dim": 20,
                "n_group": 4,
                "topk_group": 2,
                "num_key_value_heads": 1,
                "sliding_window": 9,
                "max_window_layers": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "exaone_moe": Family(
        "ExaoneMoeForCausalLM",
        {**BIASED, "num_experts": 4, "num_shared_experts": 1, "sliding_window": 9},
        prepare=with_choice_biases,
        cases={
            "": {
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "num_experts": 8,
                "n_group": 2,
            },
            "odd": {
                "num_experts_per_tok": 1,
                "num_shared_experts": 2,
                "mlp_layer_types": ["sparse", "dense"],
            },
        },
    ),
    "hy_v3": Family(
        "HYV3ForCausalLM",
        {**BIASED, "num_experts": 4, "head_dim": 20},
        prepare=with_choice_biases,
        cases={
            "": {"router_scaling_factor": 1.3, "num_experts": 9},
            "odd": {
                "mlp_layer_types": ["sparse", "sparse"],
                "num_experts_per_tok": 2,
                "num_shared_experts": 2,
                "attention_bias": True,
                "head_dim": 12,
            },
        },
    ),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 24, "head_dim": 16},
        prepare=with_choice_biases,
        cases={
            "": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "odd": {"head_dim": 20, "num_key_value_heads": 1, "tie_word_embeddings": True},
        },
    ),
    "mimo_v2_flash": Family(
        "MiMoV2FlashForCausalLM",
        {
            **BIASED,
            "num_hidden_layers": 3,
            "n_routed_experts": 7,
            "head_dim": 24,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        prepare=with_choice_biases,
        cases={
            "": {"v_head_dim": 16, "attention_bias": True, "rope_parameters": None},
            "odd": {
                "v_head_dim": 36,
                "num_key_value_heads": 1,
                "attention_value_scale": None,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "norm_topk_prob": False,
                "rope_parameters": None,
            },
        },
    ),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        {"moe_num_experts": 6, "moe_k": 6, "moe_intermediate_size": 24},
        cases={
            "": {"moe_k": 3, "moe_num_shared_experts": 1, "tie_word_embeddings": False},
            "odd": {
                "num_hidden_layers": 4,
                "moe_layer_start_index": 0,
                "moe_layer_end_index": 2,
                "moe_layer_interval": 2,
                "moe_k": 2,
            },
        },
    ),
    "hunyuan_moe": Family(
        "HunYuanMoEV1ForCausalLM",
        {"num_experts": 5, "moe_topk": 5, "intermediate_size": 24, "head_dim": 16},
        cases={
            "": {"moe_topk": 2},
            "odd": {
                "moe_topk": [3, 3],
                "attention_bias": True,
                "tie_word_embeddings": True,
                "head_dim": 12,
            },
        },
    ),
    # Not in transformers: GraniteMoeShared computes the same where its multipliers are 1.
    "deepseek": Family(
        "GraniteMoeSharedForCausalLM",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 6,
            "intermediate_size": 24,
            "shared_intermediate_size": 48,
            "attention_multiplier": 12**-0.5,
        },
        prepare=as_deepseek,
        rewrite=deepseek_files,
        cases={
            "": {"num_experts_per_tok": 3},
            "odd": {"attention_bias": True, "num_hidden_layers": 3, "num_key_value_heads": 1},
        },
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 5, "intermediate_size": 24},
        cases={
            "": {
                "num_experts_per_tok": 2,
                "head_dim": 16,
                "sliding_window": 7,
                "swiglu_limit": 0.4,
                "rope_parameters": {**YARN, "truncate": False},
            },
            "odd": {
                "head_dim": 12,
                "sliding_window": 20,
                "num_key_value_heads": 1,
                "attention_bias": False,
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "cohere2_moe": Family(
        "Cohere2MoeForCausalLM",
        {
            "num_hidden_layers": 3,
            "num_experts": 4,
            "num_experts_per_tok": 4,
            "head_dim": 16,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        cases={
            "": {
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "num_shared_experts": 1,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "prefix_dense_intermediate_size": 50,
            },
            "odd": {
                "num_shared_experts": 2,
                "shared_expert_combination_strategy": "sum",
                "expert_selection_fn": "sigmoid",
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False,
                "prefix_dense_sliding_window_pattern": 2,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "head_dim": 12,
            },
        },
    ),
    "dbrx": Family(
        "DbrxForCausalLM",
        {
            "d_model": 48,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 20000.0},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 4},
        },
        absent=(
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        ),
        cases={
            "": {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 5, "moe_top_k": 2}},
            "odd": {
                "attn_config": {"kv_n_heads": 4, "clip_qkv": 0.7, "rope_theta": 10000.0},
                "ffn_config": {
                    "ffn_hidden_size": 17,
                    "moe_num_experts": 3,
                    "moe_top_k": 2,
                    "moe_normalize_expert_weights": None,
                    "ffn_act_fn": {"name": "gelu"},
                },
            },
        },
    ),
}
