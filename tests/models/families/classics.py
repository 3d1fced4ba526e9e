"""The first generations."""

from __future__ import annotations

from tests.models.families.family import Family

FAMILIES = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        cases={
            "": {},
            "odd": {
                "n_inner": 56,
                "scale_attn_by_inverse_layer_idx": True,
                "activation_function": "relu",
            },
        },
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        {"num_attention_heads": 3, "num_key_value_heads": 3},
        cases={
            "": {},
            "in-turn": {
                "use_parallel_residual": False,
                "hidden_act": "gelu_new",
                "attention_bias": False,
            },
            "rotary": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        },
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        cases={"": {}, "odd": {"use_bias": False, "sliding_window": 7, "num_key_value_heads": 1}},
    ),
}
