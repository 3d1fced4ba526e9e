"""Qwen, Phi, Gemma and GLM."""

from __future__ import annotations

from typing import Any

from tests.models.families.family import WINDOWED, Family


def _scaled_layers(model: Any) -> None:
    """Numbers that Gemma 4's layers are scaled by, which are no parameters."""
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.5 + 0.25 * i)


FAMILIES = {
    "gemma": Family(
        "GemmaForCausalLM",
        {"head_dim": 20},
        cases={
            "": {"num_key_value_heads": 1},
            "odd": {
                "hidden_act": "gelu",
                "attention_bias": True,
                "tie_word_embeddings": False,
                "rms_norm_eps": 1e-3,
            },
        },
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {"head_dim": 20, "sliding_window": 9, "layer_types": ["sliding_attention"] * 2},
        cases={
            "": {
                "num_hidden_layers": 3,
                "layer_types": None,
                "query_pre_attn_scalar": 12,
                "attn_logit_softcapping": 2.0,
            },
            "odd": {
                "attn_logit_softcapping": None,
                "final_logit_softcapping": 3.0,
                "num_key_value_heads": 4,
                "tie_word_embeddings": False,
            },
        },
    ),
    "vault_gemma": Family(
        "VaultGemmaForCausalLM",
        {"head_dim": 12, "sliding_window": 5},
        cases={
            "": {"attn_logit_softcapping": 1.5, "num_key_value_heads": 1},
            "plain": {
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "layer_types": ["full_attention", "sliding_attention"],
            },
        },
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        {"num_hidden_layers": 3, "head_dim": 20, "sliding_window": 9},
        cases={
            "": {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
            "scaled": {
                "query_pre_attn_scalar": 12,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                },
            },
        },
    ),
    "gemma3n": Family(
        "Gemma3nForCausalLM",
        {
            "num_hidden_layers": 5,
            "head_dim": 6,
            "sliding_window": 9,
            "hidden_size_per_layer_input": 10,
            "laurel_rank": 7,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 140,
        },
        cases={
            "": {
                "altup_num_inputs": 3,
                "intermediate_size": [40, 56, 24, 40, 72],
                "activation_sparsity_pattern": [0.95, 0.6, 0.0, 0.0, 0.3],
            },
            "odd": {
                "head_dim": 10,
                "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
                # The last tokens have no input of their own.
                "vocab_size_per_layer_input": 120,
                "num_kv_shared_layers": 3,
                "altup_num_inputs": 2,
                "altup_active_idx": 1,
                "altup_correct_scale": False,
                "activation_sparsity_pattern": [0.0] * 5,
                "attention_bias": True,
                "num_key_value_heads": 1,
                "final_logit_softcapping": 3.0,
                "tie_word_embeddings": False,
            },
        },
    ),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        {
            # Scores are not scaled: with longer heads, a rounding would choose what is seen.
            "head_dim": 6,
            "global_head_dim": 10,
            "sliding_window": 9,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": 131,
        },
        cases={
            "": {
                "num_hidden_layers": 6,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 3,
                "use_double_wide_mlp": True,
            },
            "keys-are-values": {
                "num_hidden_layers": 6,
                "global_head_dim": 20,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "num_kv_shared_layers": 2,
                "layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"] * 2,
                "final_logit_softcapping": 3.0,
                "attention_bias": True,
                "rms_norm_eps": 1e-3,
            },
            "no-own-inputs": {
                "num_hidden_layers": 3,
                "head_dim": 20,
                "global_head_dim": 12,
                "hidden_size_per_layer_input": 0,
                "tie_word_embeddings": False,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "proportional",
                        "partial_rotary_factor": 0.5,
                        "rope_theta": 5000.0,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                },
            },
            "mixture": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 2,
                "enable_moe_block": True,
                "num_experts": 7,
                "top_k_experts": 3,
                "moe_intermediate_size": 24,
            },
        },
        prepare=_scaled_layers,
    ),
    "glm": Family(
        "GlmForCausalLM",
        {"head_dim": 16, "pad_token_id": None},
        cases={
            "": {},
            "odd": {
                "head_dim": 20,
                "attention_bias": False,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4},
            },
        },
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        {"head_dim": 24, "pad_token_id": None},
        cases={
            "": {"rms_norm_eps": 1e-3},
            "odd": {
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0},
            },
        },
    ),
    "phi": Family(
        "PhiForCausalLM",
        cases={
            "": {},
            "odd": {
                "qk_layernorm": True,
                "num_key_value_heads": 4,
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.34},
                "hidden_act": "gelu",
                "tie_word_embeddings": True,
            },
        },
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {"pad_token_id": None},
        cases={
            "": {},
            "partial-rotary": {
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}
            },
            "window": {"sliding_window": 9, "num_key_value_heads": 4},
        },
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        cases={
            "": {},
            "tied": {"tie_word_embeddings": True},
            "window": {**WINDOWED, "max_window_layers": 0},
            "mixed": {**WINDOWED, "max_window_layers": 1},
        },
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {"head_dim": 16},
        cases={
            "": {"head_dim": 24},
            "biases": {"attention_bias": True, "tie_word_embeddings": True},
            "window": {**WINDOWED, "max_window_layers": 0},
            "layer-types": {**WINDOWED, "layer_types": ["sliding_attention", "full_attention"]},
        },
    ),
}
