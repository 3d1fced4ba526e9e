"""Llama and its kin."""

from __future__ import annotations

from vllm_lite.config.families.architecture import LATENTS, row

_MULTIPLIERS = "embedding_multiplier residual_multiplier attention_multiplier logits_scaling"

ROWS = (
    row(
        "LlamaForCausalLM",
        "llama",
        gguf=("llama",),
        harmless="sliding_window is_llama_config",
    ),
    row(
        "MistralForCausalLM",
        "mistral",
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
        model_class="LlamaForCausalLM",
        reads="attention_out_bias",
        harmless="residual_dropout",
    ),
    row(
        "CwmForCausalLM",
        "llama",
        model_class="LlamaForCausalLM",
        own_defaults={"sliding_window_pattern": 4},
        reads="sliding_window_pattern",
        harmless="is_llama_config",
        windows="pattern from full",
    ),
    row("MinistralForCausalLM", "mistral", model_class="MistralForCausalLM", windows="every"),
    row("Ministral3ForCausalLM", "mistral", windows="every"),
    row("ArceeForCausalLM", "nemotron"),
    row(
        "NemotronForCausalLM",
        "nemotron",
        aliases={"rope_percent": "partial_rotary_factor"},
        reads="norm_eps",
    ),
    row(
        "SmolLM3ForCausalLM",
        "smollm3",
        reads="no_rope_layers no_rope_layer_interval use_sliding_window",
        harmless="max_window_layers",
    ),
    row(
        "Exaone4ForCausalLM",
        "exaone4",
        reads="sliding_window_pattern",
        windows="pattern",
    ),
    row(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan",
        own_defaults={"use_qk_norm": True},
        aliases={"attention_head_dim": "head_dim"},
        reads="use_qk_norm",
        harmless="eod_token_id",
    ),
    row("Ernie4_5ForCausalLM", "ernie4_5", reads="use_bias"),
    row(
        "InternLM2ForCausalLM",
        "internlm2",
        like="LlamaForCausalLM",
        aliases={"bias": "attention_bias"},
    ),
    row(
        "MiniCPMForCausalLM",
        "granite",
        like="LlamaForCausalLM",
        own_defaults={"scale_emb": 1, "dim_model_base": 1, "scale_depth": 1},
        reads="scale_emb dim_model_base scale_depth",
    ),
    row("ApertusForCausalLM", "apertus"),
    row("BitNetForCausalLM", "bitnet"),
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
    row(
        "MiniCPM3ForCausalLM",
        "minicpm3",
        reads=f"{LATENTS} scale_emb dim_model_base scale_depth",
    ),
    row("OlmoForCausalLM", "olmo", reads="clip_qkv"),
    row("Olmo2ForCausalLM", "olmo"),
    row(
        "Olmo3ForCausalLM",
        "olmo",
        own_defaults={"sliding_window_pattern": 4, "rope_theta": 5e5},
        reads="sliding_window_pattern",
        windows="pattern",
    ),
    row("GraniteForCausalLM", "granite", reads=_MULTIPLIERS),
    row("HyperCLOVAXForCausalLM", "granite", reads=f"{_MULTIPLIERS} use_post_norm"),
    row("CohereForCausalLM", "cohere", reads="layer_norm_eps logit_scale use_qk_norm"),
    row(
        "Cohere2ForCausalLM",
        "cohere",
        own_defaults={"sliding_window_pattern": 4},
        reads="layer_norm_eps logit_scale sliding_window_pattern",
        # What older files say of every model of this family.
        harmless="order_of_interleaved_layers position_embedding_type rotary_pct layer_switch "
        "use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding "
        "cache_implementation",
        windows="pattern",
    ),
)
