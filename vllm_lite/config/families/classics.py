"""The first generations: GPT-2, GPT-NeoX and their kin."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

ROWS = (
    row(
        "GPT2LMHeadModel",
        "gpt2",
        aliases={
            "n_embd": "hidden_size",
            "n_head": "num_attention_heads",
            "n_layer": "num_hidden_layers",
            "n_inner": "intermediate_size",
            "activation_function": "hidden_act",
        },
        reads="layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx",
        harmless="n_ctx reorder_and_upcast_attn",
    ),
    row(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
        reads="layer_norm_eps use_parallel_residual",
    ),
    row(
        "Starcoder2ForCausalLM",
        "starcoder2",
        reads="norm_epsilon use_bias",
        windows="every",
    ),
)
