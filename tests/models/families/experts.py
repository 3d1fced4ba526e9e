"""Mixtures of experts."""

from __future__ import annotations

from tests.models.families.family import WINDOWED, Family

FAMILIES = {
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
