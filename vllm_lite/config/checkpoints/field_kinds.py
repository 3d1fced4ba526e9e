"""The kind of value that each field of a configuration holds, by its usual name.

Families read fields on that understanding: a value of another kind is refused here, by its name,
before any of them meets it. Fields of several forms are left to the families that read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vllm_lite.errors import CheckpointError

# Sizes are multiplied with each other in 64 bits.
LARGEST_SIZE = 2**31 - 1
# What there is one of in a list, and in memory a few objects: layers, experts.
MOST_LISTED = 2**14
_LISTED = {"num_hidden_layers", "num_experts", "n_routed_experts"}


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 <= value <= LARGEST_SIZE


# What a field must hold, the check, and the fields; a null is nothing said, but for names with "!".
_KINDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        f"a whole number from 0 to {LARGEST_SIZE}",
        _is_whole,
        """adapter_rank altup_active_idx! altup_num_inputs attention_chunk_size attn_layer_offset!
        attn_layer_period block_multiple_of conv1d_width conv_L_cache conv_kernel
        decoder_sparse_step expansion_ratio
        expert_layer_offset! expert_layer_period first_k_dense_replace! full_attention_interval
        colbert_dim dim embedding_size projection_dim global_attn_every_n_layers local_attention
        type_vocab_size
        global_head_dim hidden_size_per_layer_input interleave_moe_layer_step
        intermediate_size_mlp kv_lora_rank laurel_rank linear_conv_kernel_dim linear_head_dim
        linear_key_head_dim linear_num_heads linear_num_key_heads linear_num_value_heads
        linear_value_head_dim lru_width mamba_d_conv mamba_d_ssm mamba_d_state mamba_n_groups
        mamba_n_heads mamba_ngroups max_window_layers! moe_latent_size moe_layer_interval
        moe_layer_start_index! moe_shared_expert_intermediate_size n_group n_groups
        n_mamba_heads n_routed_experts no_rope_layer_interval num_dense_layers! num_experts
        num_global_key_value_heads num_hidden_layers num_kv_heads num_kv_shared_layers
        num_labels num_mem_blocks num_shared_experts pad_token_id! prefix_dense_intermediate_size
        prefix_dense_sliding_window_pattern q_lora_rank qk_head_dim qk_nope_head_dim
        qk_rope_head_dim rotary_dim shared_expert_intermediate_size shared_intermediate_size
        sliding_window_size state_size swa_head_dim swa_num_attention_heads
        swa_num_key_value_heads swa_v_head_dim topk_group v_head_dim vocab_size_per_layer_input
        word_embed_proj_dim""",
    ),
    (
        "a number",
        _is_number,
        """attention_in_multiplier attention_multiplier attention_out_multiplier
        attention_value_scale attn_logit_softcapping attn_scale block_ffn_dim_multiplier
        clip_qkv dim_model_base embedding_multiplier expand final_logit_softcapping floor_scale
        full_attn_alpha_factor full_attn_beta_factor key_multiplier layer_norm_eps
        layer_norm_epsilon linear_attn_alpha_factor linear_attn_beta_factor lm_head_multiplier
        logit_scale logits_scaling logits_soft_cap mamba_expand mixer_rms_eps mlp_alpha_factor
        mlp_beta_factor moe_layer_end_index! moe_norm_min! moe_normalize_expert_weights norm_eps
        norm_epsilon original_max_position_embeddings partial_rotary_factor
        query_pre_attn_scalar residual_multiplier rms_norm_eps rope_local_base_freq rope_theta
        routed_scaling_factor router_jitter_noise router_scaling_factor scale_depth scale_emb
        ssm_in_multiplier ssm_out_multiplier swiglu_alpha swiglu_limit time_step_min""",
    ),
    (
        "true or false",
        lambda value: isinstance(value, int | float) and value in (0, 1),
        """_remove_final_layer_norm add_bias_linear add_full_attention_sink_bias
        add_swa_attention_sink_bias alibi altup_correct_scale attention_bias attention_k_eq_v
        attention_out_bias
        attn_temperature_tuning bias block_auto_adjust_ff_dim conv_bias do_layer_norm_before
        enable_bias enable_moe_block is_causal is_matryoshka
        layer_norm_elementwise_affine linear_allow_neg_eigval lm_head_bias
        mamba_conv_bias mamba_norm_before_gate mamba_proj_bias mamba_rms_norm mla_use_nope
        mlp_bias multi_query new_decoder_architecture no_bias norm_topk_prob parallel_attn
        postnorm projectors_bias qk_layernorm qkv_bias rope_interleave
        classifier_bias norm_bias qkv_proj_bias mlp_fc1_bias mlp_fc2_bias
        scale_attn_by_inverse_layer_idx scale_attn_weights scale_embedding tie_word_embeddings
        use_bias use_conv_bias use_double_wide_mlp use_expert_bias use_mem_rope
        use_parallel_residual use_post_norm use_qk_norm use_qkv_bias
        use_shared_attention_adapter use_sliding_window""",
    ),
    (
        "a text",
        lambda value: isinstance(value, str),
        """activation_function classifier_activation! classifier_pooling! head_dtype method
        problem_type sbert_ce_default_activation_function
        expert_selection_fn! hidden_act! hybrid_override_pattern mlp_hidden_act!
        moe_router_activation_func norm_type! position_embedding_type scoring_func!
        shared_expert_combination_strategy! topk_method""",
    ),
    (
        "a list",
        lambda value: isinstance(value, list),
        """attention_types attn_layer_indices attn_type_list block_configs block_types bskcn_1
        classifier_from_token
        bskcn_2 bskcn_3 bskcn_4 full_attn_idxs layer_types mlp_layer_types mlp_only_layers
        moe_layers no_rope_layers num_key_value_heads_per_layer time_step_limit!""",
    ),
    (
        "a list of numbers",
        lambda value: isinstance(value, list) and all(map(_is_number, value)),
        "bskcn_tv matryoshka_dimensions mlp_multipliers ssm_multipliers",
    ),
    (
        "an object",
        lambda value: isinstance(value, dict),
        """attn_config ffn_act_fn id2label sentence_transformers
        linear_attn_config per_layer_config quantization_config
        rope_parameters rope_scaling""",
    ),
)
KIND_OF = {
    name.removesuffix("!"): (said, holds, name.endswith("!"))
    for said, holds, names in _KINDS
    for name in names.split()
}


def check_kind(path: str, name: str, usual: str, value: Any) -> None:
    """Raise CheckpointError unless the field `name`, usually called `usual`, is of its kind."""
    said, holds, is_needed = KIND_OF.get(usual, ("", None, False))
    if holds is None or (value is None and not is_needed):
        return
    if usual in _LISTED and isinstance(value, int) and value > MOST_LISTED:
        raise CheckpointError(
            f"{path}: {name} is {value} in its configuration, more than {MOST_LISTED}"
        )
    if not holds(value):
        raise CheckpointError(f"{path}: {name} is {shown(value)} in its configuration, not {said}")


def shown(value: Any) -> str:
    """`value` in a message of one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
