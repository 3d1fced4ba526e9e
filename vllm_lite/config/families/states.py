"""State-space layers, alone and beside attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from vllm_lite.config.families.architecture import GRANITE_FACTORS, LATENTS, row, spelled

_row = partial(row, mixer="both")
_MAMBA: dict[str, Any] = {
    "module": "mamba",
    "model_class": "MambaForCausalLM",
    "reads": "state_size conv_kernel expand use_bias use_conv_bias layer_norm_epsilon "
    "time_step_rank mixer_rms_eps",
    # What steps of time were drawn from, and which program computed them.
    "harmless": "time_step_scale time_step_min time_step_max time_step_init_scheme "
    "time_step_floor residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan d_inner "
    "d_model n_layer fused_add_norm pad_vocab_size_multiple rms_norm",
    "own_defaults": {"time_step_rank": "auto"},
    "mixer": "state",
}
_MAMBA_FILES: dict[str, Any] = {
    "gguf_fields": {
        "ssm.state_size": "state_size",
        "ssm.conv_kernel": "conv_kernel",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    },
    "gguf_seen": {"use_bias": "blk.0.ssm_in.bias", "use_conv_bias": "blk.0.ssm_conv1d.bias"},
}

_MAMBA2 = (
    "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand "
    "mamba_conv_bias mamba_proj_bias time_step_limit "
)
_MIXER_FIELDS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
_MIXER_BIASES = {
    "mamba_conv_bias": "blk.0.ssm_conv1d.bias",
    "mamba_proj_bias": "blk.0.ssm_in.bias",
}

_DELTA = (
    "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim "
    "linear_conv_kernel_dim "
)
_DELTA_FIELDS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_SHARED_FIELDS = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}

# Blocks whose sums with the stream have factors, by their names in older files.
MINIMAX_BLOCKS = {
    "full_attention": "full_attn",
    "linear_attention": "linear_attn",
    "mlp": "mlp",
}

_QWEN_EXPERTS = (
    "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size"
)
_QWEN3_5 = (
    "num_nextn_predict_layers mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings "
    "attn_output_gate"
)

_MINIMAX = _row(
    "MiniMaxForCausalLM",
    "minimax",
    aliases={
        "num_local_experts": "num_experts",
        **{
            f"layernorm_{kind}_{factor}": f"{own}_{factor}_factor"
            for kind, own in MINIMAX_BLOCKS.items()
            for factor in ("alpha", "beta")
        },
    },
    reads="num_experts num_experts_per_tok rotary_dim postnorm attn_type_list "
    + " ".join(f"{own}_{f}_factor" for own in MINIMAX_BLOCKS.values() for f in ("alpha", "beta")),
    # How others cut what they compute, and how shared experts would be added.
    harmless="block_size shared_moe_mode router_jitter_noise",
)

ROWS = (
    _MINIMAX,
    *(
        spelled(name, _MINIMAX, own_defaults={"postnorm": False})
        for name in ("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM")
    ),
    _row(
        "MambaForCausalLM",
        gguf=("mamba",),
        gguf_fields={**_MAMBA_FILES["gguf_fields"], "ssm.time_step_rank": "time_step_rank"},
        gguf_seen=_MAMBA_FILES["gguf_seen"],
        **_MAMBA,
    ),
    _row("FalconMambaForCausalLM", **_MAMBA),
    _row(
        "Mamba2ForCausalLM",
        "mamba",
        gguf=("mamba2",),
        gguf_fields={**_MAMBA_FILES["gguf_fields"], "ssm.group_count": "n_groups"},
        gguf_seen=_MAMBA_FILES["gguf_seen"],
        aliases={"num_heads": "num_attention_heads"},
        reads="n_groups state_size conv_kernel expand use_bias use_conv_bias "
        "layer_norm_epsilon time_step_limit",
        # What steps of time were drawn from, and how others cut and round what they compute.
        harmless="time_step_min time_step_max time_step_floor time_step_rank "
        "time_step_init_scheme time_step_scale chunk_size residual_in_fp32 rms_norm "
        "norm_before_gate",
        mixer="state",
    ),
    _row(
        "BambaForCausalLM",
        "hybrid",
        reads=f"{_MAMBA2} attn_layer_indices",
        harmless="mamba_chunk_size num_logits_to_keep z_loss_coefficient",
    ),
    _row(
        "GraniteMoeHybridForCausalLM",
        "granite",
        gguf=("granitehybrid",),
        gguf_fields={**_MIXER_FIELDS, **GRANITE_FACTORS},
        # Files of Bamba, which has no factors, call themselves so too.
        gguf_fixed={"attention_multiplier": None},
        gguf_seen=_MIXER_BIASES,
        aliases={"num_local_experts": "num_experts"},
        reads=f"{_MAMBA2} embedding_multiplier logits_scaling residual_multiplier "
        "attention_multiplier num_experts num_experts_per_tok shared_intermediate_size "
        "position_embedding_type",
        harmless="mamba_chunk_size normalization_function init_method",
    ),
    _row(
        "NemotronHForCausalLM",
        "nemotron_h",
        gguf=("nemotron_h", "nemotron_h_moe"),
        gguf_fields={
            **_MIXER_FIELDS,
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "expert_count": "n_routed_experts",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "expert_weights_norm": "norm_topk_prob",
            "moe_latent_size": "moe_latent_size",
        },
        gguf_seen={"mamba_conv_bias": "blk.0.ssm_conv1d.bias", "use_bias": "blk.0.ssm_in.bias"},
        aliases={
            "attention_head_dim": "head_dim",
            "mamba_num_heads": "mamba_n_heads",
            "mamba_head_dim": "mamba_d_head",
            "n_groups": "mamba_n_groups",
            "ssm_state_size": "mamba_d_state",
            "conv_kernel": "mamba_d_conv",
            "expand": "mamba_expand",
            "use_conv_bias": "mamba_conv_bias",
            "mamba_hidden_act": "hidden_act",
            "mamba_dt_limit": "time_step_limit",
            "layers_block_type": "layer_types",
        },
        reads=f"{_MAMBA2} use_bias mlp_hidden_act layer_norm_epsilon hybrid_override_pattern "
        "n_routed_experts moe_intermediate_size moe_shared_expert_intermediate_size "
        "moe_latent_size num_experts_per_tok routed_scaling_factor n_group topk_group "
        "norm_topk_prob",
        # Of drafts, and what steps of time were drawn from.
        harmless="chunk_size mamba_chunk_size mamba_ssm_cache_dtype use_mamba_kernels "
        "num_logits_to_keep n_shared_experts moe_shared_expert_overlap num_nextn_predict_layers "
        "mtp_layers_block_type time_step_min time_step_max time_step_floor time_step_rank "
        "residual_in_fp32 rescale_prenorm_residual norm_eps num_query_groups",
    ),
    _row(
        "Lfm2ForCausalLM",
        "lfm2",
        gguf=("lfm2",),
        gguf_fields={"shortconv.l_cache": "conv_L_cache"},
        gguf_seen={"conv_bias": "blk.0.shortconv.conv.bias"},
        aliases={
            "norm_eps": "rms_norm_eps",
            "tie_embedding": "tie_word_embeddings",
            "block_ff_dim": "intermediate_size",
        },
        own_defaults={"tie_word_embeddings": True, "intermediate_size": 12288},
        reads="conv_bias conv_L_cache block_multiple_of block_ffn_dim_multiplier "
        "block_auto_adjust_ff_dim full_attn_idxs",
        harmless="conv_dim conv_dim_out conv_use_xavier_init block_dim block_mlp_init_scale "
        "block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init use_pos_enc "
        "num_heads theta",
    ),
    _row(
        "Qwen3_5ForCausalLM",
        "qwen3_next",
        gguf=("qwen35",),
        gguf_fields=_DELTA_FIELDS,
        reads=f"{_DELTA} full_attention_interval",
        harmless=f"{_QWEN3_5} mlp_only_layers",
    ),
    _row(
        "Qwen3_5MoeForCausalLM",
        "qwen3_next",
        gguf=("qwen35moe",),
        gguf_fields={**_DELTA_FIELDS, **_SHARED_FIELDS},
        # Of no layer: all have experts.
        own_defaults={"intermediate_size": 1},
        reads=f"{_DELTA} full_attention_interval {_QWEN_EXPERTS}",
        harmless=f"{_QWEN3_5} mlp_only_layers",
    ),
    _row(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        gguf=("qwen3next",),
        gguf_fields={**_DELTA_FIELDS, **_SHARED_FIELDS},
        reads=f"{_DELTA} full_attention_interval {_QWEN_EXPERTS} norm_topk_prob "
        "decoder_sparse_step mlp_only_layers",
        harmless=_QWEN3_5,
    ),
    _row(
        "JambaForCausalLM",
        "jamba",
        gguf=("jamba",),
        gguf_fields={
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": "mamba_dt_rank",
        },
        gguf_seen=_MIXER_BIASES,
        aliases={"num_local_experts": "num_experts"},
        reads="mamba_d_state mamba_d_conv mamba_expand mamba_dt_rank mamba_conv_bias "
        "mamba_proj_bias num_experts num_experts_per_tok expert_layer_period expert_layer_offset "
        "attn_layer_period attn_layer_offset",
        harmless="use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep "
        "mamba_inner_layernorms calc_logits_for_entire_prompt",
        own_defaults={"mamba_dt_rank": "auto"},
    ),
    _row(
        "Lfm2MoeForCausalLM",
        "lfm2",
        gguf=("lfm2moe",),
        gguf_fields={
            "shortconv.l_cache": "conv_L_cache",
            "leading_dense_block_count": "num_dense_layers",
        },
        gguf_seen={
            "conv_bias": "blk.0.shortconv.conv.bias",
            "use_expert_bias": "blk.0.exp_probs_b.bias",
        },
        aliases={"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"},
        own_defaults={"tie_word_embeddings": True},
        reads="conv_bias conv_L_cache moe_intermediate_size num_dense_layers num_experts "
        "num_experts_per_tok use_expert_bias routed_scaling_factor norm_topk_prob",
        harmless="use_pos_enc",
    ),
    _row(
        "OlmoHybridForCausalLM",
        "olmo_hybrid",
        reads=f"{_DELTA} linear_allow_neg_eigval",
        harmless="linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max "
        "linear_dt_init_floor",
    ),
    _row(
        "FalconH1ForCausalLM",
        "falcon_h1",
        gguf=("falcon-h1",),
        gguf_fields={**_MIXER_FIELDS, "ssm.inner_size": "mamba_d_ssm"},
        gguf_seen={
            **_MIXER_BIASES,
            "mamba_rms_norm": "blk.0.ssm_norm.weight",
            "projectors_bias": "blk.0.ssm_out.bias",
        },
        # llama.cpp's converter multiplies factors into the weights.
        gguf_fixed={
            "mamba_norm_before_gate": False,
            **dict.fromkeys(
                (
                    *("lm_head_multiplier", "embedding_multiplier", "key_multiplier"),
                    *("attention_out_multiplier", "attention_in_multiplier"),
                    *("ssm_in_multiplier", "ssm_out_multiplier"),
                ),
                1.0,
            ),
        },
        reads=f"{_MAMBA2} mamba_d_ssm mamba_norm_before_gate mamba_rms_norm projectors_bias "
        "lm_head_multiplier embedding_multiplier mlp_multipliers key_multiplier "
        "attention_out_multiplier attention_in_multiplier ssm_multipliers ssm_in_multiplier "
        "ssm_out_multiplier",
        harmless="mamba_chunk_size num_logits_to_keep mamba_use_mlp time_step_floor "
        "time_step_max time_step_min time_step_rank attn_layer_indices mlp_expansion_factor",
    ),
    _row(
        "Zamba2ForCausalLM",
        "zamba2",
        aliases={"attention_head_dim": "head_dim", "layers_block_type": "layer_types"},
        reads="n_mamba_heads mamba_ngroups mamba_d_state mamba_d_conv mamba_expand time_step_min "
        "add_bias_linear num_mem_blocks adapter_rank use_shared_attention_adapter use_mem_rope",
        # Sizes that others imply, and what steps of time were drawn from.
        harmless="attention_hidden_size kv_channels num_query_groups hybrid_layer_ids "
        "mamba_headdim ffn_hidden_size chunk_size num_logits_to_keep use_mamba_kernels "
        "use_mem_eff_path use_conv_bias use_shared_mlp_adapter time_step_max time_step_floor",
    ),
    _row(
        "KimiLinearForCausalLM",
        "kimi_linear",
        gguf=("kimi-linear",),
        gguf_fields={
            "ssm.conv_kernel": "linear_conv_kernel_dim",
            "kda.head_dim": "linear_head_dim",
        },
        aliases={
            "model_max_length": "max_position_embeddings",
            "moe_renormalize": "norm_topk_prob",
            "num_expert_group": "n_group",
            "num_experts_per_token": "num_experts_per_tok",
            "n_shared_experts": "num_shared_experts",
        },
        reads=f"{LATENTS} linear_attn_config linear_head_dim linear_num_heads "
        "linear_conv_kernel_dim num_experts num_experts_per_tok moe_intermediate_size "
        "num_shared_experts norm_topk_prob routed_scaling_factor n_group topk_group "
        "first_k_dense_replace mlp_layer_types moe_layer_freq topk_method "
        "moe_router_activation_func mla_use_nope",
        harmless="use_grouped_topk num_nextn_predict_layers",
        own_defaults={"first_k_dense_replace": 1},
    ),
    _row(
        "RecurrentGemmaForCausalLM",
        "recurrent_gemma",
        aliases={"attention_window_size": "sliding_window", "hidden_activation": "hidden_act"},
        reads="block_types lru_width conv1d_width logits_soft_cap",
        harmless="w_init_variance_scale final_w_init_variance_scale embeddings_scale_by_sqrt_dim",
        # The length that it was trained with: its configuration does not state one.
        own_defaults={"max_position_embeddings": 8192},
        windows="every",
    ),
)
