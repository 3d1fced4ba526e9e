"""Llama and its kin."""

from __future__ import annotations

from tests.models.families.family import LLAMA3, YARN, Family

FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM",
        cases={
            "": {},
            "tied": {"tie_word_embeddings": True},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "wide-heads": {"head_dim": 20},
            "head-size-6": {"head_dim": 6, "num_key_value_heads": 1},
            "many-heads": {"num_attention_heads": 6, "num_key_value_heads": 6},
            "rope-linear": {
                "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}
            },
            "rope-dynamic": {
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
            },
            "rope-llama3": {"rope_parameters": LLAMA3},
            "rope-yarn": {"rope_parameters": YARN},
            "rope-yarn-mscale": {
                "rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}
            },
            "rope-yarn-attention-factor": {
                "rope_parameters": {
                    **YARN,
                    "attention_factor": 1.3,
                    "beta_fast": 16,
                    "beta_slow": 2,
                }
            },
        },
    ),
    "mistral": Family(
        "MistralForCausalLM",
        cases={"": {"sliding_window": None}, "window": {"sliding_window": 9, "head_dim": 16}},
    ),
}
