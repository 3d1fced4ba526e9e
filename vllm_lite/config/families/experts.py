"""Mixtures of experts."""

from __future__ import annotations

from functools import partial
from typing import Any

from vllm_lite.config.families.architecture import GRANITE_FACTORS, LATENTS, row, spelled
from vllm_lite.config.families.llama import HUNYUAN_FIXED, HUNYUAN_HARMLESS
from vllm_lite.config.families.states import MINIMAX_BLOCKS

# What some files call the experts of a layer, those of a token, and shared ones.
_NAMES = {
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
}
_row = partial(row, aliases=_NAMES)
_ROUTED = "num_experts num_experts_per_tok"
_QWEN = f"{_ROUTED} moe_intermediate_size decoder_sparse_step mlp_only_layers norm_topk_prob"
_BIASED = (
    f"{_ROUTED} moe_intermediate_size num_shared_experts norm_topk_prob routed_scaling_factor "
    "n_group topk_group first_k_dense_replace mlp_layer_types"
)
# DeepSeek-V3's way to choose experts, and that of many after it.
_CHOICE: dict[str, Any] = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_MULTIPLIERS = "embedding_multiplier residual_multiplier attention_multiplier logits_scaling"
_NORMED = {"expert_weights_norm": "norm_topk_prob"}
# Of training, and of drafts by further layers.
_UNUSED = "router_jitter_noise input_jitter_noise num_nextn_predict_layers num_mtp_layers"

# Of Hunyuan's eyes.
_IMAGES = (
    "anyres_pooling_size num_media_embeds vit_input_resolution vit_mapping_type vit_norm_type "
    "vit_patch vit_token"
)
_PHIMOE = _row(
    "PhimoeForCausalLM",
    "mixtral",
    gguf=("phimoe",),
    gguf_seen={"lm_head_bias": "output.bias"},
    reads=f"{_ROUTED} router_jitter_noise lm_head_bias",
    harmless="input_jitter_noise",
    windows="every",
)
_EXAONE = _row(
    "ExaoneMoeForCausalLM",
    "exaone4",
    gguf=("exaone-moe",),
    gguf_fields=_NORMED,
    gguf_fixed={"norm_topk_prob": False},
    aliases={**_NAMES, "is_moe_layer": "mlp_layer_types"},
    reads=f"{_BIASED} sliding_window_pattern",
    harmless=f"{_UNUSED} first_last_k_dense_replace",
    fixed=_CHOICE,
    windows="pattern",
)

ROWS = (
    _row("MixtralForCausalLM", "mixtral", reads=_ROUTED, harmless=_UNUSED, windows="every"),
    _PHIMOE,
    spelled("PhiMoEForCausalLM", _PHIMOE),
    _row(
        "Qwen2MoeForCausalLM",
        "qwen3_moe",
        gguf=("qwen2moe",),
        gguf_fields={"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        gguf_fixed={"norm_topk_prob": False},
        gguf_seen={"qkv_bias": "blk.0.attn_q.bias"},
        reads=f"{_QWEN} shared_expert_intermediate_size use_sliding_window max_window_layers",
        windows="switched",
    ),
    _row(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        gguf=("qwen3moe",),
        reads=f"{_QWEN} use_sliding_window",
        harmless="max_window_layers",
        fixed={"use_qk_norm": True},
        windows="every",
    ),
    _row(
        "OlmoeForCausalLM",
        "olmo",
        gguf=("olmoe",),
        gguf_fixed={"norm_topk_prob": False},
        reads=f"{_ROUTED} norm_topk_prob",
    ),
    _row(
        "FlexOlmoForCausalLM",
        "olmo",
        reads=f"{_ROUTED} norm_topk_prob",
    ),
    _row("GraniteMoeForCausalLM", "granite", reads=f"{_ROUTED} {_MULTIPLIERS}"),
    _row(
        "GraniteMoeSharedForCausalLM",
        "granite",
        model_class="GraniteMoeForCausalLM",
        gguf=("granitemoe",),
        gguf_fields={
            **GRANITE_FACTORS,
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        gguf_fixed={"shared_intermediate_size": 0, "attention_multiplier": None},
        reads=f"{_ROUTED} {_MULTIPLIERS} shared_intermediate_size",
    ),
    _row(
        "Glm4MoeForCausalLM",
        "glm",
        gguf=("glm4moe",),
        gguf_fields=_NORMED,
        gguf_fixed={"norm_topk_prob": False},
        reads=f"{_BIASED} use_qk_norm",
        harmless=_UNUSED,
    ),
    _row(
        "Glm4MoeLiteForCausalLM",
        "deepseek",
        model_class="DeepseekV3ForCausalLM",
        own_defaults={"first_k_dense_replace": 1},
        reads=f"{_BIASED} {LATENTS} rope_interleave",
        fixed={**_CHOICE, "moe_layer_freq": 1},
        harmless=_UNUSED,
    ),
    _row(
        "DeepseekV2ForCausalLM",
        "deepseek",
        gguf=("deepseek2",),
        gguf_fields=_NORMED,
        gguf_fixed={"norm_topk_prob": False},
        reads=f"{_BIASED} {LATENTS} rope_interleave topk_method",
        fixed={"scoring_func": "softmax", "moe_layer_freq": 1},
        harmless=f"{_UNUSED} ep_size seq_aux",
    ),
    _row(
        "DeepseekV3ForCausalLM",
        "deepseek",
        reads=f"{_BIASED} {LATENTS} rope_interleave",
        fixed={**_CHOICE, "moe_layer_freq": 1},
        harmless=f"{_UNUSED} ep_size seq_aux",
    ),
    _EXAONE,
    spelled("ExaoneMoEForCausalLM", _EXAONE),
    _row(
        "HYV3ForCausalLM",
        "hunyuan",
        own_defaults={"first_k_dense_replace": 1},
        reads=f"{_ROUTED} moe_intermediate_size num_shared_experts router_scaling_factor "
        "mlp_layer_types first_k_dense_replace",
        # Sums are rounded once in any case.
        harmless=f"{_UNUSED} enable_moe_fp32_combine",
    ),
    _row(
        "MiniMaxM2ForCausalLM",
        "mixtral",
        gguf=("minimax-m2",),
        reads=f"{_ROUTED} rotary_dim",
        # What it has of MiniMax-Text-01, whose sums have factors, and of drafts.
        harmless=f"{_UNUSED} attn_type_list mlp_intermediate_size shared_moe_mode use_mtp "
        "num_mtp_modules mtp_transformer_layers",
        fixed={
            **dict.fromkeys((f"layernorm_{block}_beta" for block in MINIMAX_BLOCKS), 1.0),
            "qk_norm_type": "per_layer",
            "scoring_func": "sigmoid",
            "use_qk_norm": True,
            "use_routing_bias": True,
        },
    ),
    _row(
        "MiMoV2FlashForCausalLM",
        "mimo_v2_flash",
        gguf=("mimo2",),
        gguf_fields={
            "attention.value_length": "v_head_dim",
            "attention.value_scale": "attention_value_scale",
        },
        gguf_fixed={"attention_value_scale": 1.0},
        own_defaults={
            "first_k_dense_replace": 1,
            "rope_theta": 5e6,
            "rope_local_base_freq": 1e4,
            "partial_rotary_factor": 0.334,
        },
        aliases={
            **_NAMES,
            "layernorm_epsilon": "rms_norm_eps",
            "hybrid_layer_pattern": "layer_types",
            "moe_layer_freq": "mlp_layer_types",
            "swa_rope_theta": "rope_local_base_freq",
        },
        reads=f"{_BIASED} v_head_dim attention_value_scale sliding_window_size "
        "rope_local_base_freq swa_num_attention_heads swa_num_key_value_heads "
        "swa_head_dim swa_v_head_dim add_swa_attention_sink_bias add_full_attention_sink_bias",
        fixed=_CHOICE,
        # What the window says too, and layers for drafts.
        harmless="attention_chunk_size num_nextn_predict_layers",
    ),
    _row(
        "DeepseekForCausalLM",
        "deepseek",
        gguf=("deepseek",),
        gguf_fixed={"norm_topk_prob": False},
        like="LlamaForCausalLM",
        own_defaults={
            "first_k_dense_replace": 0,
            "moe_layer_freq": 1,
            "norm_topk_prob": False,
            "scoring_func": "softmax",
        },
        reads=f"{_ROUTED} moe_intermediate_size num_shared_experts norm_topk_prob "
        "routed_scaling_factor first_k_dense_replace moe_layer_freq scoring_func",
        harmless="seq_aux",
    ),
    _row(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5",
        gguf=("ernie4_5-moe",),
        gguf_fields={
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
        gguf_fixed={"moe_layer_end_index": -1},
        aliases={
            "moe_num_experts": "num_experts",
            "moe_k": "num_experts_per_tok",
            "moe_num_shared_experts": "num_shared_experts",
        },
        reads=f"{_ROUTED} moe_intermediate_size num_shared_experts moe_layer_start_index "
        "moe_layer_end_index moe_layer_interval moe_norm_min",
        harmless=f"{_UNUSED} moe_capacity",
        fixed={"moe_gate": "topk", "moe_use_aux_free": True, "use_rmsnorm": True},
    ),
    _row(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan",
        gguf=("hunyuan-moe",),
        gguf_fields={"expert_shared_count": "num_shared_expert"},
        own_defaults={"use_qk_norm": True, "num_shared_expert": 1},
        aliases={
            "num_local_experts": "num_experts",
            "moe_topk": "num_experts_per_tok",
            "attention_head_dim": "head_dim",
        },
        reads=f"{_ROUTED} moe_intermediate_size num_shared_expert use_qk_norm",
        harmless=f"{HUNYUAN_HARMLESS} {_IMAGES}",
        fixed={
            **HUNYUAN_FIXED,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "use_mixed_mlp_moe": True,
        },
    ),
    _row(
        "Dots1ForCausalLM",
        "glm",
        model_class="Glm4MoeForCausalLM",
        gguf=("dots1",),
        gguf_fields=_NORMED,
        gguf_fixed={"norm_topk_prob": False, "use_qk_norm": True},
        own_defaults={"use_qk_norm": True},
        reads=f"{_BIASED} use_qk_norm max_window_layers",
        fixed={"moe_layer_freq": 1},
        # It has one way to choose, whatever its files call it.
        harmless="scoring_func topk_method",
        windows="switched",
    ),
    _row(
        "GptOssForCausalLM",
        "gpt_oss",
        gguf=("gpt-oss",),
        own_defaults={
            "sliding_window_pattern": 2,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        reads=f"{_ROUTED} swiglu_limit swiglu_alpha sliding_window_pattern",
        # What other fields say too.
        harmless="experts_per_token initial_context_length",
        windows="pattern",
        reasoning_parser="openai_gptoss",
    ),
    _row(
        "Cohere2MoeForCausalLM",
        "cohere",
        own_defaults={"sliding_window_pattern": 4, "first_k_dense_replace": 0},
        reads=f"{_ROUTED} num_shared_experts norm_topk_prob expert_selection_fn layer_norm_eps "
        "shared_expert_combination_strategy logit_scale mlp_layer_types first_k_dense_replace "
        "prefix_dense_sliding_window_pattern prefix_dense_intermediate_size sliding_window_pattern",
        windows="pattern",
    ),
    _row(
        "DbrxForCausalLM",
        "dbrx",
        gguf=("dbrx",),
        gguf_fields={"attention.clamp_kqv": "clip_qkv"},
        own_defaults={
            "num_key_value_heads": 1,
            "intermediate_size": 3584,
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_normalize_expert_weights": 1.0,
        },
        aliases={
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "kv_n_heads": "num_key_value_heads",
            "ffn_hidden_size": "intermediate_size",
            "moe_num_experts": "num_experts",
            "moe_top_k": "num_experts_per_tok",
        },
        nested="attn_config ffn_config",
        reads=f"{_ROUTED} clip_qkv ffn_act_fn moe_normalize_expert_weights",
        harmless="moe_jitter_eps moe_loss_weight emb_pdrop uniform_expert_assignment",
    ),
)
