"""Mixtures of experts."""

from __future__ import annotations

from tests.models.families.family import WINDOWED, Family

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
}
