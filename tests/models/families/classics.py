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
    "gptj": Family(
        "GPTJForCausalLM",
        {"rotary_dim": 8},
        cases={
            "": {},
            "odd": {
                "n_inner": 56,
                "rotary_dim": 6,
                "n_head": 8,
                "activation_function": "quick_gelu",
                "tie_word_embeddings": True,
            },
        },
        absent=("num_key_value_heads",),
    ),
    "codegen": Family(
        "CodeGenForCausalLM",
        {"rotary_dim": 12, "n_head": 4},
        cases={"": {}, "odd": {"rotary_dim": 4, "n_head": 8, "activation_function": "gelu_fast"}},
        absent=("num_key_value_heads",),
    ),
    "gpt_neo": Family(
        "GPTNeoForCausalLM",
        {"attention_types": [[["local"], 2]], "window_size": 9},
        cases={
            "": {},
            "in-turn": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
            "odd": {
                "num_hidden_layers": 3,
                "attention_types": [[["local"], 1], [["global"], 2]],
                "window_size": 17,
                "intermediate_size": 56,
                "num_attention_heads": 3,
                "tie_word_embeddings": False,
            },
        },
        absent=("num_key_value_heads",),
    ),
    "gpt_bigcode": Family(
        "GPTBigCodeForCausalLM",
        {"n_head": 4},
        cases={
            "": {},
            "odd": {
                "multi_query": False,
                "n_inner": 56,
                "scale_attn_weights": False,
                "activation_function": "gelu",
                "tie_word_embeddings": False,
            },
        },
        absent=("num_key_value_heads",),
    ),
    "opt": Family(
        "OPTForCausalLM",
        {"ffn_dim": 80, "_remove_final_layer_norm": False},
        cases={
            "": {},
            "350m": {"do_layer_norm_before": False, "word_embed_proj_dim": 20},
            "odd": {
                "ffn_dim": 56,
                "num_attention_heads": 3,
                "enable_bias": False,
                "layer_norm_elementwise_affine": False,
                "tie_word_embeddings": False,
                "activation_function": "gelu",
                "_remove_final_layer_norm": True,
                "word_embed_proj_dim": 64,
            },
        },
        absent=("intermediate_size", "num_key_value_heads"),
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
    "stablelm": Family(
        "StableLmForCausalLM",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        cases={
            "": {},
            "odd": {
                "use_qkv_bias": True,
                "qk_layernorm": True,
                "use_parallel_residual": True,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "falcon": Family(
        "FalconForCausalLM",
        {"bias": False},
        cases={
            "": {},
            "40b": {
                "new_decoder_architecture": True,
                "num_kv_heads": 2,
                "bias": True,
                "ffn_hidden_size": 56,
                "tie_word_embeddings": False,
            },
            "11b": {
                "new_decoder_architecture": True,
                "num_kv_heads": 1,
                "num_ln_in_parallel_attn": 1,
            },
            # Heads are a power of two: transformers rounds other slopes to bfloat16.
            "rw": {
                "alibi": True,
                "multi_query": False,
                "parallel_attn": False,
                "bias": True,
                "activation": "relu",
                # With its other attention transformers adds the slopes twice.
                "attn_implementation": "sdpa",
            },
        },
        absent=("intermediate_size", "num_key_value_heads"),
    ),
    "xglm": Family(
        "XGLMForCausalLM",
        {"ffn_dim": 80},
        cases={
            "": {},
            "odd": {
                "ffn_dim": 56,
                "attention_heads": 3,
                "num_attention_heads": 3,
                "d_model": 51,
                "hidden_size": 51,
                "scale_embedding": False,
                "activation_function": "relu",
                "tie_word_embeddings": False,
            },
        },
        absent=("intermediate_size", "num_key_value_heads"),
    ),
    "bloom": Family(
        "BloomForCausalLM",
        cases={
            "": {},
            "odd": {"n_head": 3, "num_attention_heads": 3, "tie_word_embeddings": False},
        },
        absent=("intermediate_size", "num_key_value_heads"),
    ),
    "mpt": Family(
        "MptForCausalLM",
        cases={
            "": {},
            "odd": {
                "num_attention_heads": 3,
                "attn_config": {"clip_qkv": 0.6, "softmax_scale": 0.4},
                "tie_word_embeddings": False,
            },
        },
        absent=("intermediate_size", "num_key_value_heads"),
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        cases={"": {}, "odd": {"use_bias": False, "sliding_window": 7, "num_key_value_heads": 1}},
    ),
}
