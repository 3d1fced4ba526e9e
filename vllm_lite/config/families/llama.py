"""Llama and its kin."""

from __future__ import annotations

from typing import Any

from vllm_lite.config.families.architecture import GRANITE_FACTORS, LATENTS, row

_MULTIPLIERS = "embedding_multiplier residual_multiplier attention_multiplier logits_scaling"
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"original_max_position_embeddings": 8192}
_COHERE_FIELDS = {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}
# What it has of other tasks, or what only cross-layer attention would read.
HUNYUAN_HARMLESS = "class_num cla_share_factor dense_list org_vocab_size pool_type"
HUNYUAN_FIXED: dict[str, Any] = {"norm_type": "rms", "use_cla": False, "use_rotary_pos_emb": True}

ROWS = (
    row(
        "LlamaForCausalLM",
        "llama",
        gguf=("llama",),
        harmless="sliding_window is_llama_config",
    ),
    row(
        "MistralForCausalLM",
        "llama",
        gguf=("mistral",),
        windows="every",
    ),
    row("LLaMAForCausalLM", "llama", model_class="LlamaForCausalLM", like="LlamaForCausalLM"),
    row(
        "IQuestCoderForCausalLM",
        "llama",
        model_class="LlamaForCausalLM",
        like="LlamaForCausalLM",
        own_defaults={"head_dim": 128},
    ),
    row(
        "InternLM3ForCausalLM",
        "llama",
        model_class="LlamaForCausalLM",
        like="LlamaForCausalLM",
        own_defaults={"head_dim": 128},
        aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    ),
    row(
        "SeedOssForCausalLM",
        "llama",
        gguf=("seed_oss",),
        reads="attention_out_bias",
    ),
    row(
        "CwmForCausalLM",
        "llama",
        model_class="LlamaForCausalLM",
        own_defaults={
            "sliding_window_pattern": 4,
            "rope_scaling": {**_LLAMA3, **_LONG, "factor": 16.0},
        },
        reads="sliding_window_pattern",
        harmless="is_llama_config",
        windows="pattern from full",
    ),
    row("MinistralForCausalLM", "llama", model_class="MistralForCausalLM", windows="every"),
    row(
        "Ministral3ForCausalLM",
        "llama",
        gguf=("mistral3",),
        own_defaults={
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "max_position_embeddings": 262144,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
        windows="every",
    ),
    row("ArceeForCausalLM", "nemotron", gguf=("arcee",)),
    row(
        "NemotronForCausalLM",
        "nemotron",
        gguf=("nemotron",),
        gguf_fields={"attention.layer_norm_epsilon": "norm_eps"},
        aliases={"rope_percent": "partial_rotary_factor"},
        reads="norm_eps",
    ),
    row(
        "SmolLM3ForCausalLM",
        "llama",
        gguf=("smollm3",),
        own_defaults={"no_rope_layer_interval": 4},
        reads="no_rope_layers no_rope_layer_interval use_sliding_window",
        harmless="max_window_layers",
    ),
    row(
        "Exaone4ForCausalLM",
        "exaone4",
        gguf=("exaone4",),
        own_defaults={"sliding_window_pattern": 4},
        reads="sliding_window_pattern",
        windows="pattern",
    ),
    row(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan",
        gguf=("hunyuan-dense",),
        own_defaults={"use_qk_norm": True},
        aliases={"attention_head_dim": "head_dim"},
        reads="use_qk_norm",
        harmless=HUNYUAN_HARMLESS,
        fixed=HUNYUAN_FIXED,
    ),
    row(
        "Ernie4_5ForCausalLM",
        "ernie4_5",
        gguf=("ernie4_5",),
        reads="use_bias",
        fixed={"use_rmsnorm": True},
    ),
    row(
        "InternLM2ForCausalLM",
        "internlm2",
        gguf=("internlm2",),
        like="LlamaForCausalLM",
        aliases={"bias": "attention_bias"},
    ),
    row(
        "MiniCPMForCausalLM",
        "granite",
        like="LlamaForCausalLM",
        own_defaults={"scale_emb": 1, "dim_model_base": 1, "scale_depth": 1},
        reads="scale_emb dim_model_base scale_depth",
        # Of training.
        harmless="mup_denominator",
    ),
    row(
        "Llama4ForCausalLM",
        "llama4",
        gguf=("llama4",),
        gguf_fields={"interleave_moe_layer_step": "interleave_moe_layer_step"},
        aliases={"num_local_experts": "num_experts"},
        reads="num_experts num_experts_per_tok intermediate_size_mlp moe_layers "
        "interleave_moe_layer_step use_qk_norm no_rope_layers no_rope_layer_interval "
        "attention_chunk_size attn_temperature_tuning floor_scale attn_scale",
        harmless="router_jitter_noise for_llm_compressor",
        windows="chunked",
    ),
    row(
        "ApertusForCausalLM",
        "nemotron",
        gguf=("apertus",),
        own_defaults={"rope_scaling": {**_LLAMA3, **_LONG, "factor": 8.0}},
        fixed={"qk_norm": True, "post_norm": False},
    ),
    row("BitNetForCausalLM", "bitnet", gguf=("bitnet",), gguf_fixed={"hidden_act": "silu"}),
    row(
        "SolarForCausalLM",
        "solar",
        like="LlamaForCausalLM",
        own_defaults={
            "bskcn_1": [12, 20, 32, 44],
            "bskcn_2": [20, 32],
            "bskcn_3": [16, 24, 36, 48],
            "bskcn_4": [28, 40],
            "bskcn_tv": [0.9, 0.8],
        },
        reads="bskcn_1 bskcn_2 bskcn_3 bskcn_4 bskcn_tv",
        # Read by none of its programs.
        harmless="sliding_window",
    ),
    row("NanoChatForCausalLM", "nanochat", reads="final_logit_softcapping"),
    row(
        "DeciLMForCausalLM",
        "deci",
        gguf=("deci",),
        like="LlamaForCausalLM",
        reads="block_configs num_key_value_heads_per_layer",
        harmless="naive_attention_prefill naive_attention_decode_batched "
        "naive_attention_decode_single",
    ),
    row(
        "MiniCPM3ForCausalLM",
        "granite",
        gguf=("minicpm3",),
        gguf_fixed={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
        reads=f"{LATENTS} scale_emb dim_model_base scale_depth",
    ),
    row(
        "OlmoForCausalLM",
        "olmo",
        gguf=("olmo",),
        gguf_fields={"attention.clamp_kqv": "clip_qkv"},
        reads="clip_qkv",
    ),
    row("Olmo2ForCausalLM", "olmo", gguf=("olmo2",)),
    row(
        "Olmo3ForCausalLM",
        "olmo",
        own_defaults={"sliding_window_pattern": 4, "rope_theta": 5e5},
        reads="sliding_window_pattern",
        windows="pattern",
    ),
    row(
        "GraniteForCausalLM",
        "granite",
        gguf=("granite", "minicpm"),
        gguf_fixed={"attention_multiplier": None},
        gguf_fields=GRANITE_FACTORS,
        reads=_MULTIPLIERS,
    ),
    row("HyperCLOVAXForCausalLM", "granite", reads=f"{_MULTIPLIERS} use_post_norm"),
    row(
        "CohereForCausalLM",
        "cohere",
        gguf=("command-r",),
        gguf_fields=_COHERE_FIELDS,
        reads="layer_norm_eps logit_scale use_qk_norm",
    ),
    row(
        "Cohere2ForCausalLM",
        "cohere",
        gguf=("cohere2",),
        gguf_fields=_COHERE_FIELDS,
        own_defaults={"sliding_window_pattern": 4},
        reads="layer_norm_eps logit_scale sliding_window_pattern",
        # What older files say of every model of this family.
        harmless="order_of_interleaved_layers position_embedding_type rotary_pct layer_switch "
        "use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding",
        windows="pattern",
    ),
)
