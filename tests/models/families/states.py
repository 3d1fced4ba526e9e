"""State-space layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.models.families.experts import BIASED, LATENTS, with_choice_biases
from tests.models.families.family import Family

_ABSENT = (
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
)
_MAMBA_CASES: dict[str, dict[str, Any]] = {
    "": {},
    "odd": {
        "hidden_size": 25,
        "expand": 3,
        "state_size": 7,
        "conv_kernel": 3,
        "time_step_rank": 5,
        "use_bias": True,
        "use_conv_bias": False,
        "tie_word_embeddings": False,
    },
}

_MAMBA2 = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
}
_ODD_MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 36,
    "mamba_expand": 3,
    "mamba_n_groups": 1,
    "mamba_d_state": 9,
    "mamba_d_conv": 3,
    "mamba_conv_bias": False,
    "mamba_proj_bias": True,
    "time_step_limit": (0.2, 0.9),
}

_DELTA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 20,
}
_QWEN_EXPERTS = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "rms_norm_eps": 1e-2,
    "num_experts": 3,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}

_MINIMAX_FACTORS = {
    "full_attn_alpha_factor": 1.7,
    "full_attn_beta_factor": 0.9,
    "linear_attn_alpha_factor": 1.3,
    "linear_attn_beta_factor": 1.2,
    "mlp_alpha_factor": 2.5,
    "mlp_beta_factor": 0.8,
}
# MiniMax-Text-01's names of these fields.
_OLD_FACTORS = {
    f"{block}_{name}_factor": f"layernorm_{old}_{name}"
    for block, old in (
        ("full_attn", "full_attention"),
        ("linear_attn", "linear_attention"),
        ("mlp", "mlp"),
    )
    for name in ("alpha", "beta")
}
_ROTARY_DIM = 8


def rotating_a_part(model: Any) -> None:
    """Leave all but _ROTARY_DIM / 2 pairs of a head as they are."""
    frequencies = model.model.rotary_emb.inv_freq
    pairs = torch.arange(0, _ROTARY_DIM, 2) / _ROTARY_DIM
    frequencies.zero_()[: len(pairs)] = 1e4**-pairs


def text_01_files(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """MiniMax-Text-01's names of MiniMax's fields; what is rotated comes first in its heads."""
    for name, old in _OLD_FACTORS.items():
        config[old] = config.pop(name)
    kinds = config.pop("layer_types")
    config |= {
        "architectures": ["MiniMaxText01ForCausalLM"],
        "attn_type_list": [int(kind == "full_attention") for kind in kinds],
        "postnorm": True,
        "rotary_dim": _ROTARY_DIM,
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
    }
    half, turned = torch.arange(config["head_dim"]).chunk(2), _ROTARY_DIM // 2
    order = torch.cat([part[:turned] for part in half] + [part[turned:] for part in half])
    for name, values in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = values.view(-1, len(order), values.shape[1])
            tensors[name] = heads[:, order].reshape(values.shape)
    return tensors


def as_published(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Kimi's own spellings, in a model of three layers; others stay as transformers writes them."""
    if config["num_hidden_layers"] < 3:
        return tensors
    kinds, sizes = config.pop("layer_types"), ("head_dim", "num_heads", "conv_kernel_dim")
    head_size, num_heads, kernel_size = (config.pop(f"linear_{name}") for name in sizes)
    config["linear_attn_config"] = {
        "full_attn_layers": [i for i, kind in enumerate(kinds, 1) if kind == "full_attention"],
        "kda_layers": [i for i, kind in enumerate(kinds, 1) if kind == "linear_attention"],
        "head_dim": head_size,
        "num_heads": num_heads,
        "short_conv_kernel_size": kernel_size,
    }
    config |= {"first_k_dense_replace": 1, "mla_use_nope": True, "moe_layer_freq": 1}
    config |= {"moe_router_activation_func": "sigmoid", "use_grouped_topk": True}
    del config["mlp_layer_types"]
    return {
        name.replace("layers.0.block_sparse_moe", "layers.0.mlp"): t for name, t in tensors.items()
    }


def with_states_of_its_width(model: Any) -> None:
    """Let a convolution remember as many channels as it has, which hidden_size need not be."""
    for layer in model.model.layers:
        block = layer.temporal_block
        block.hidden_size = getattr(block, "lru_width", block.hidden_size)


FAMILIES = {
    "minimax": Family(
        "MiniMaxForCausalLM",
        {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 3,
            "num_experts_per_tok": 3,
            "intermediate_size": 24,
            "block_size": 16,
            "rms_norm_eps": 1e-2,
            **_MINIMAX_FACTORS,
        },
        cases={
            "": {"num_local_experts": 5, "num_experts_per_tok": 2},
            "odd": {
                "linear_attn_alpha_factor": 1,
                "linear_attn_beta_factor": 1,
                "layer_types": ["full_attention", "linear_attention", "linear_attention"],
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "head_dim": 14,
                "num_experts_per_tok": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "minimax_text_01": Family(
        "MiniMaxForCausalLM",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 2,
            "head_dim": 20,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            **_MINIMAX_FACTORS,
        },
        prepare=rotating_a_part,
        rewrite=text_01_files,
        cases={
            "": {},
            "odd": {
                "layer_types": ["full_attention", "linear_attention"],
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "head_dim": 14,
                "num_local_experts": 3,
                "num_experts_per_tok": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "bamba": Family(
        "BambaForCausalLM",
        {**_MAMBA2, "attn_layer_indices": [1]},
        cases={
            "": {},
            "odd": {
                **_ODD_MAMBA2,
                "attn_layer_indices": [0, 2],
                "head_dim": 20,
                "attention_bias": True,
                "mlp_bias": True,
                "tie_word_embeddings": True,
            },
        },
    ),
    "mamba": Family("MambaForCausalLM", absent=_ABSENT, cases=_MAMBA_CASES),
    "falcon_mamba": Family(
        "FalconMambaForCausalLM", {"state_size": 12}, absent=_ABSENT, cases=_MAMBA_CASES
    ),
    "granite_hybrid": Family(
        "GraniteMoeHybridForCausalLM",
        {
            **_MAMBA2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mamba_n_groups": 1,
            "num_local_experts": 0,
            "shared_intermediate_size": 72,
            "embedding_multiplier": 1.7,
            "logits_scaling": 1.3,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.3,
        },
        cases={
            "": {},
            "odd": {
                **_ODD_MAMBA2,
                "mamba_n_groups": 2,
                "position_embedding_type": "rope",
                "layer_types": ["full_attention", "linear_attention", "full_attention"],
                "shared_intermediate_size": 40,
                "attention_bias": True,
                "tie_word_embeddings": True,
            },
            "experts": {
                "num_local_experts": 5,
                "num_experts_per_tok": 3,
                "intermediate_size": 40,
            },
        },
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "mamba_num_heads": 6,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 12,
            "head_dim": 12,
        },
        absent=("num_hidden_layers",),
        cases={
            "": {},
            "odd": {
                "layers_block_type": ["mlp", "full_attention", "linear_attention"],
                "mamba_num_heads": 4,
                "mamba_head_dim": 36,
                "tie_word_embeddings": True,
                "n_groups": 1,
                "ssm_state_size": 9,
                "conv_kernel": 3,
                "use_conv_bias": False,
                "use_bias": True,
                "mlp_bias": True,
                "head_dim": 20,
                "num_key_value_heads": 1,
            },
            "experts": {
                "layers_block_type": ["linear_attention", "moe", "full_attention"],
                "n_routed_experts": 6,
                "n_group": 3,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 40,
                "moe_shared_expert_intermediate_size": 56,
                "routed_scaling_factor": 1.7,
            },
        },
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
        cases={
            "": {"block_auto_adjust_ff_dim": False},
            "odd": {
                "conv_bias": True,
                "conv_L_cache": 5,
                "block_multiple_of": 20,
                "layer_types": ["full_attention", "conv", "conv"],
                "tie_word_embeddings": False,
                "num_key_value_heads": 1,
            },
        },
    ),
    "qwen3_5": Family(
        "Qwen3_5ForCausalLM",
        _DELTA,
        cases={
            "": {},
            "odd": {
                "layer_types": ["full_attention", "linear_attention", "full_attention"],
                "linear_num_key_heads": 3,
                "linear_num_value_heads": 3,
                "linear_key_head_dim": 9,
                "linear_value_head_dim": 7,
                "linear_conv_kernel_dim": 2,
                "head_dim": 16,
                "attention_bias": True,
                "tie_word_embeddings": True,
            },
        },
    ),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeForCausalLM",
        {**_DELTA, **_QWEN_EXPERTS},
        cases={"": {}, "some": {"num_experts": 5, "num_experts_per_tok": 2}},
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        {**_DELTA, **_QWEN_EXPERTS},
        cases={
            "": {"mlp_only_layers": [0]},
            "odd": {
                "linear_num_key_heads": 1,
                "linear_num_value_heads": 3,
                "linear_value_head_dim": 13,
                "norm_topk_prob": False,
                "num_experts": 6,
                "decoder_sparse_step": 2,
                "head_dim": 16,
            },
        },
    ),
    "olmo_hybrid": Family(
        "OlmoHybridForCausalLM",
        {**_DELTA, "linear_num_key_heads": 4, "rms_norm_eps": 1e-3, "pad_token_id": None},
        cases={
            "": {},
            "odd": {
                "linear_num_key_heads": 3,
                "linear_num_value_heads": 3,
                "linear_key_head_dim": 13,
                "linear_value_head_dim": 13,
                "linear_allow_neg_eigval": False,
                "linear_conv_kernel_dim": 2,
                "attention_bias": True,
            },
        },
    ),
    "zamba2": Family(
        "Zamba2ForCausalLM",
        {
            # Others would magnify what float32 rounds, use by use.
            "hidden_size": 24,
            "rms_norm_eps": 9.0,
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "num_key_value_heads": 4,
            "n_mamba_heads": 6,
            "mamba_ngroups": 2,
            "mamba_d_state": 12,
            "adapter_rank": 5,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
        },
        cases={
            "": {},
            "odd": {
                "num_hidden_layers": 3,
                "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
                "num_mem_blocks": 1,
                "num_key_value_heads": 2,
                "n_mamba_heads": 4,
                "mamba_ngroups": 1,
                "mamba_d_state": 9,
                "mamba_d_conv": 3,
                "mamba_expand": 3,
                "add_bias_linear": True,
                "use_shared_attention_adapter": False,
                "use_mem_rope": False,
                "time_step_min": 0.3,
            },
        },
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        {
            **LATENTS,
            **BIASED,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "q_lora_rank": None,
            "num_experts": 6,
            "linear_num_heads": 4,
            "linear_head_dim": 12,
            "pad_token_id": None,
        },
        prepare=with_choice_biases,
        rewrite=as_published,
        cases={
            "": {"num_expert_group": 3, "topk_group": 2},
            "odd": {
                "num_hidden_layers": 2,
                "layer_types": ["full_attention", "linear_attention"],
                "mlp_layer_types": ["sparse", "dense"],
                "q_lora_rank": 20,
                "attention_bias": True,
                "num_shared_experts": 2,
                "moe_renormalize": False,
                "linear_num_heads": 3,
                "linear_head_dim": 9,
                "linear_conv_kernel_dim": 2,
            },
        },
    ),
    "recurrent_gemma": Family(
        "RecurrentGemmaForCausalLM",
        {
            "num_hidden_layers": 3,
            "block_types": ["recurrent", "attention"],
            "attention_window_size": 7,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        absent=("max_position_embeddings",),
        prepare=with_states_of_its_width,
        cases={
            "": {},
            "odd": {
                "block_types": ["attention", "recurrent", "recurrent"],
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "lru_width": 39,
                "conv1d_width": 3,
                "attention_window_size": 20,
                "attention_bias": True,
                "logits_soft_cap": 2.5,
                "intermediate_size": 71,
                "tie_word_embeddings": False,
            },
        },
    ),
    "jamba": Family(
        "JambaForCausalLM",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 12,
        },
        cases={
            "": {"expert_layer_offset": 0},
            "odd": {
                "num_hidden_layers": 3,
                "attn_layer_period": 3,
                "expert_layer_period": 3,
                "expert_layer_offset": 1,
                "num_experts": 4,
                "num_experts_per_tok": 1,
                "mamba_dt_rank": 5,
                "mamba_d_conv": 3,
                "mamba_expand": 3,
                "mamba_conv_bias": False,
                "mamba_proj_bias": True,
                "tie_word_embeddings": True,
            },
        },
    ),
    "lfm2_moe": Family(
        "Lfm2MoeForCausalLM",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_hidden_layers": 3,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
        },
        cases={
            "": {},
            "odd": {
                "use_expert_bias": False,
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.7,
                "num_dense_layers": 0,
            },
        },
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        {**_MAMBA2, "mamba_d_ssm": 96, "key_multiplier": 0.7},
        cases={
            "": {
                "embedding_multiplier": 1.7,
                "lm_head_multiplier": 0.8,
                "mlp_multipliers": [0.9, 1.2],
                "attention_in_multiplier": 1.1,
                "attention_out_multiplier": 0.6,
                "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
                "ssm_in_multiplier": 1.3,
                "ssm_out_multiplier": 0.9,
                "attention_bias": True,
                "projectors_bias": True,
            },
            "normed": {
                **_ODD_MAMBA2,
                "mamba_d_ssm": 72,
                "mamba_d_head": 18,
                "mamba_n_groups": 2,
                "mamba_rms_norm": True,
                "mamba_norm_before_gate": False,
                "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
                "ssm_in_multiplier": 1.3,
                "tie_word_embeddings": True,
            },
            "normed-first": {"mamba_rms_norm": True, "head_dim": 20},
        },
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        {"num_heads": 6, "head_dim": 16, "n_groups": 2, "state_size": 12},
        absent=_ABSENT,
        cases={
            "": {},
            "odd": {
                "num_heads": 5,
                "head_dim": 15,
                "hidden_size": 25,
                "expand": 3,
                "n_groups": 1,
                "state_size": 9,
                "conv_kernel": 3,
                "use_bias": True,
                "use_conv_bias": False,
                "time_step_limit": (0.2, 0.9),
                "tie_word_embeddings": True,
            },
        },
    ),
}
