"""The first generations: GPT-2, GPT-NeoX and their kin."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row, spelled

_GPT = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
_EPSILON = "attention.layer_norm_epsilon"
_STABLELM = row(
    "StableLmForCausalLM",
    "stablelm",
    gguf=("stablelm",),
    gguf_fields={
        _EPSILON: "layer_norm_eps",
        "use_parallel_residual": "use_parallel_residual",
    },
    gguf_seen={
        "use_qkv_bias": "blk.0.attn_q.bias",
        "qk_layernorm": "blk.0.attn_q_norm.weight",
    },
    aliases={"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"},
    reads="layer_norm_eps use_qkv_bias qk_layernorm use_parallel_residual",
    # What num_attention_heads says too.
    harmless="num_heads",
    fixed={"rotary_scaling_factor": 1.0},
)
_FALCON = row(
    "FalconForCausalLM",
    "falcon",
    gguf=("falcon",),
    gguf_fields={_EPSILON: "layer_norm_epsilon", "attention.head_count_kv": "num_kv_heads"},
    # The newer form has the older one's shapes, too.
    gguf_fixed={"new_decoder_architecture": True},
    gguf_seen={"num_ln_in_parallel_attn": "!blk.0.attn_norm_2.weight"},
    aliases={
        "n_embed": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_head_kv": "num_kv_heads",
        "ffn_hidden_size": "intermediate_size",
        "activation": "hidden_act",
    },
    reads="layer_norm_epsilon alibi bias multi_query new_decoder_architecture num_kv_heads "
    "num_ln_in_parallel_attn parallel_attn",
    harmless="ff_factor rotary",
)
_MPT = row(
    "MptForCausalLM",
    "mpt",
    gguf=("mpt",),
    gguf_fields={
        _EPSILON: "layer_norm_epsilon",
        "attention.clamp_kqv": "attn_config.clip_qkv",
        "attention.max_alibi_bias": "attn_config.alibi_bias_max",
    },
    gguf_seen={"no_bias": "!blk.0.attn_output.bias"},
    aliases={
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
    },
    own_defaults={"hidden_act": "gelu", "max_position_embeddings": 2048},
    reads="layer_norm_epsilon attn_config expansion_ratio no_bias norm_type",
    # Learned positions are what ALiBi replaces; embedding_fraction is of gradients.
    harmless="emb_pdrop embedding_fraction fc_type init_config init_device learned_pos_emb "
    "tokenizer_name verbose",
)

ROWS = (
    row(
        "GPT2LMHeadModel",
        "gpt2",
        gguf=("gpt2",),
        gguf_fields={_EPSILON: "layer_norm_epsilon"},
        aliases=_GPT,
        reads="layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx",
        harmless="reorder_and_upcast_attn",
    ),
    row(
        "GPTJForCausalLM",
        "gpt_neox",
        aliases=_GPT,
        reads="layer_norm_epsilon rotary_dim",
        # transformers' class has them, and looks at neither.
        harmless="rotary scale_attn_weights",
    ),
    row(
        "CodeGenForCausalLM",
        "gpt_neox",
        aliases=_GPT,
        reads="layer_norm_epsilon rotary_dim",
        harmless="rotary scale_attn_weights",
    ),
    row(
        "GPTNeoForCausalLM",
        "gpt2",
        aliases={
            "num_heads": "num_attention_heads",
            "num_layers": "num_hidden_layers",
            "activation_function": "hidden_act",
            "window_size": "sliding_window",
        },
        reads="layer_norm_epsilon attention_types",
        # Written out of attention_types.
        harmless="attention_layers embed_dropout",
        windows="attention_types",
    ),
    row(
        "GPTBigCodeForCausalLM",
        "gpt2",
        gguf=("starcoder",),
        gguf_fields={_EPSILON: "layer_norm_epsilon"},
        aliases=_GPT,
        reads="layer_norm_epsilon scale_attn_weights multi_query",
        harmless="attention_softmax_in_fp32 scale_attention_softmax_in_fp32 "
        "inference_runner validate_runner_input pad_key_length pre_allocate_kv_cache "
        "max_batch_size max_sequence_length runner_max_sequence_length",
    ),
    row(
        "OPTForCausalLM",
        "opt",
        aliases={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
        reads="do_layer_norm_before enable_bias layer_norm_elementwise_affine "
        "word_embed_proj_dim _remove_final_layer_norm",
        harmless="layerdrop activation_dropout learned_embeddings",
    ),
    row(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        gguf=("gptneox",),
        gguf_fields={
            _EPSILON: "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        gguf_seen={"attention_bias": "blk.0.attn_qkv.bias"},
        aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
        reads="layer_norm_eps use_parallel_residual",
    ),
    _STABLELM,
    spelled("StableLMEpochForCausalLM", _STABLELM),
    _FALCON,
    spelled("RWForCausalLM", _FALCON),
    row(
        "XGLMForCausalLM",
        "xglm",
        aliases={
            "d_model": "hidden_size",
            "attention_heads": "num_attention_heads",
            "num_layers": "num_hidden_layers",
            "ffn_dim": "intermediate_size",
            "activation_function": "hidden_act",
        },
        reads="scale_embedding",
        harmless="layerdrop activation_dropout",
    ),
    row(
        "BloomForCausalLM",
        "bloom",
        gguf=("bloom",),
        gguf_fields={_EPSILON: "layer_norm_epsilon"},
        aliases={**_GPT, "n_embed": "hidden_size"},
        own_defaults={"hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 2048},
        reads="layer_norm_epsilon",
        harmless="attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi "
        "skip_bias_add skip_bias_add_qkv slow_but_exact",
    ),
    _MPT,
    spelled("MPTForCausalLM", _MPT),
    row(
        "Starcoder2ForCausalLM",
        "starcoder2",
        gguf=("starcoder2",),
        gguf_fields={_EPSILON: "norm_epsilon"},
        reads="norm_epsilon use_bias",
        # Not the one that it computes with.
        harmless="layer_norm_epsilon",
        fixed={"mlp_type": "default", "norm_type": "layer_norm"},
        windows="every",
    ),
)
