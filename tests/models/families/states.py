"""State-space layers."""

from __future__ import annotations

from tests.models.families.family import Family

FAMILIES = {
    "mamba2": Family(
        "Mamba2ForCausalLM",
        {"num_heads": 6, "head_dim": 16, "n_groups": 2, "state_size": 12},
        absent=(
            "intermediate_size",
            "max_position_embeddings",
            "num_attention_heads",
            "num_key_value_heads",
        ),
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
