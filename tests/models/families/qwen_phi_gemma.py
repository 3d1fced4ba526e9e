"""Qwen, Phi, Gemma and GLM."""

from __future__ import annotations

from tests.models.families.family import WINDOWED, Family

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
