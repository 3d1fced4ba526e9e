"""Qwen, Phi, Gemma and GLM."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

# Gemma's from the second generation on.
_CAPPED = (
    "query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping sliding_window_pattern"
)

_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Gemma 3n's and Gemma 4's.
_OWN_INPUTS = (
    "hidden_size_per_layer_input vocab_size_per_layer_input num_kv_shared_layers "
    "final_logit_softcapping sliding_window_pattern"
)
_OWN_INPUT_KEYS = {
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Gemma 4's rotations, where its file says nothing of them.
_TURNS = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

ROWS = (
    row(
        "Qwen2ForCausalLM",
        "llama",
        gguf=("qwen2",),
        reads="use_sliding_window max_window_layers",
        windows="switched",
    ),
    row(
        "Qwen3ForCausalLM",
        "qwen3",
        gguf=("qwen3",),
        reads="use_sliding_window max_window_layers",
        windows="switched",
    ),
    row(
        "PhiForCausalLM",
        "phi",
        gguf=("phi2",),
        gguf_fields={"attention.layer_norm_epsilon": "layer_norm_eps"},
        reads="layer_norm_eps qk_layernorm",
    ),
    row(
        "Phi3ForCausalLM",
        "phi",
        gguf=("phi3",),
        # Of attention to blocks in Phi-3-small.
        fixed={"full_attn_mod": 1, "interpolate_factor": 1},
        windows="every",
    ),
    row(
        "GemmaForCausalLM",
        "gemma",
        gguf=("gemma",),
        # Never another form than that of hidden_act.
        harmless="hidden_activation",
    ),
    *(
        row(
            name,
            "gemma",
            gguf=gguf,
            gguf_fields=_CAPS,
            own_defaults={"sliding_window_pattern": 2},
            aliases={"hidden_activation": "hidden_act"},
            reads=_CAPPED,
            windows="pattern",
        )
        for name, gguf in (("Gemma2ForCausalLM", ("gemma2",)), ("VaultGemmaForCausalLM", ()))
    ),
    row(
        "Gemma3ForCausalLM",
        "gemma",
        gguf=("gemma3",),
        gguf_fields=_CAPS,
        own_defaults={"rope_theta": 1e6, "rope_local_base_freq": 1e4},
        aliases={"hidden_activation": "hidden_act"},
        reads=f"{_CAPPED} rope_local_base_freq",
        windows="pattern",
    ),
    row(
        "Gemma3nForCausalLM",
        "gemma3n",
        gguf=("gemma3n",),
        # The first files leave the cap out, which is that of published models.
        gguf_fields={
            **_OWN_INPUT_KEYS,
            "altup.active_idx": "altup_active_idx",
            "altup.num_inputs": "altup_num_inputs",
        },
        own_defaults={"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 5},
        aliases={"hidden_activation": "hidden_act"},
        reads=f"{_OWN_INPUTS} rope_local_base_freq laurel_rank altup_active_idx altup_num_inputs "
        "altup_correct_scale activation_sparsity_pattern",
        # Of training, and a scale that its scores do not have.
        harmless="altup_coef_clip altup_lr_multiplier query_pre_attn_scalar",
        windows="pattern",
    ),
    row(
        "Gemma4ForCausalLM",
        "gemma4",
        gguf=("gemma4",),
        gguf_fields={**_OWN_INPUT_KEYS, "attention.key_length_swa": "head_dim"},
        gguf_fixed={"final_logit_softcapping": None},
        gguf_seen={"enable_moe_block": "blk.0.ffn_gate_inp.weight"},
        own_defaults={"global_head_dim": 512, "rope_parameters": _TURNS},
        aliases={"hidden_activation": "hidden_act", "top_k_experts": "num_experts_per_tok"},
        reads=f"{_OWN_INPUTS} attention_k_eq_v use_double_wide_mlp use_bidirectional_attention "
        "global_head_dim num_global_key_value_heads per_layer_config enable_moe_block num_experts "
        "num_experts_per_tok moe_intermediate_size",
        windows="pattern",
    ),
    row("GlmForCausalLM", "glm", gguf=("chatglm",)),
    row("Glm4ForCausalLM", "glm", gguf=("glm4",)),
)
