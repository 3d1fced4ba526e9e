"""Llama and its kin."""

from __future__ import annotations

from copy import copy
from typing import Any

from torch import Tensor, cat

from tests.models.families.family import LLAMA3, YARN, Family, named

# Solar's lists for four layers: two streams are kept, and both taken up by the last.
SOLAR = {"bskcn_1": [0, 1], "bskcn_2": [2], "bskcn_3": [2, 3], "bskcn_4": [3]}


def skip_blocks(model: Any) -> None:
    """Let Llama's layers keep streams and take them up, as SOLAR says."""
    kept: dict[int, Tensor] = {}

    def before(number: int, stream: Tensor) -> Tensor:
        for pair in (1, 2):
            if number in SOLAR[f"bskcn_{pair}"]:
                kept[pair] = stream
        for pair in (1, 2):
            if number in SOLAR[f"bskcn_{pair + 2}"]:
                stream = 0.8 * kept[pair] + 0.2 * stream
        return stream

    for number, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(
            lambda _, args, number=number: (before(number, args[0]), *args[1:])
        )


def as_solar(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same files with Solar's lists."""
    config |= {"architectures": ["SolarForCausalLM"], "sliding_window": 7, **SOLAR}
    return tensors


# Of each layer: key-value heads and the MLP's width; 0 where it has none. Widths are whole 256s,
# as the usual formula makes them.
DECI = ((2, 256), (0, 512), (4, 0), (1, 256))


def search_blocks(model: Any) -> None:
    """Let Llama's layers differ as DECI says."""
    for (heads, width), layer in zip(DECI, model.model.layers, strict=True):
        config = copy(model.config)
        config.num_key_value_heads, config.intermediate_size = heads or 1, width or 1
        layer.self_attn = type(layer.self_attn)(config, layer.self_attn.layer_idx)
        layer.mlp = type(layer.mlp)(config)
        if not heads:
            layer.self_attn.o_proj.requires_grad_(False).weight.zero_()
            layer.self_attn.o_proj.register_forward_hook(lambda _, args, out: out * 0)
        if not width:
            layer.mlp.register_forward_hook(lambda _, args, out: out * 0)


def as_deci(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same files in DeciLM's words, without what its layers lack."""
    config["architectures"] = ["DeciLMForCausalLM"]
    config["num_key_value_heads"] = config["intermediate_size"] = None
    config["block_configs"] = [
        {
            "attention": {
                "no_op": not heads,
                "n_heads_in_group": config["num_attention_heads"] // heads if heads else None,
            },
            "ffn": {"no_op": not width, "intermediate_size": width or None},
        }
        for heads, width in DECI
    ]
    lacks = [
        f"layers.{i}.{name}"
        for i, (heads, width) in enumerate(DECI)
        for name in (
            *(() if heads else ("self_attn.", "input_layernorm")),
            *(() if width else ("mlp.", "post_attention_layernorm")),
        )
    ]
    return {name: x for name, x in tensors.items() if not any(part in name for part in lacks)}


def as_internlm2(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Llama's weights as InternLM 2's: a group's queries before the key and the value it shares."""
    config["architectures"] = ["InternLM2ForCausalLM"]
    config["bias"] = config.pop("attention_bias")
    groups = config["num_key_value_heads"]
    names = {
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    new = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{kind}_proj")] for kind in "qkv"]
            grouped = [part.view(groups, -1, part.shape[-1]) for part in parts]
            name = name.replace("self_attn.q_proj", "attention.wqkv")
            tensor = cat(grouped, dim=1).flatten(0, 1)
        elif "k_proj" in name or "v_proj" in name:
            continue
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        new[name] = tensor.contiguous()
    return new


def as_internlm3(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Llama's fields as InternLM 3's own code calls them."""
    config["architectures"] = ["InternLM3ForCausalLM"]
    config["qkv_bias"], config["bias"] = config.pop("attention_bias"), config.pop("mlp_bias")
    return tensors


def as_minicpm(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Granite's multipliers as MiniCPM states them."""
    config["architectures"] = ["MiniCPMForCausalLM"]
    config["scale_emb"] = config.pop("embedding_multiplier")
    config["scale_depth"] = config.pop("residual_multiplier") * config["num_hidden_layers"] ** 0.5
    config["dim_model_base"] = int(config["hidden_size"] / config.pop("logits_scaling"))
    del config["attention_multiplier"]
    return tensors


FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM",
        cases={
            "": {},
            "tied": {"tie_word_embeddings": True},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "wide-heads": {"head_dim": 20},
            "head-size-6": {"head_dim": 6, "num_key_value_heads": 1},
            "many-heads": {"num_attention_heads": 6, "num_key_value_heads": 6},
            "rope-linear": {
                "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}
            },
            "rope-dynamic": {
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
            },
            "rope-llama3": {"rope_parameters": LLAMA3},
            "rope-yarn": {"rope_parameters": YARN},
            "rope-yarn-mscale": {
                "rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}
            },
            "rope-yarn-attention-factor": {
                "rope_parameters": {
                    **YARN,
                    "attention_factor": 1.3,
                    "beta_fast": 16,
                    "beta_slow": 2,
                }
            },
        },
    ),
    "mistral": Family(
        "MistralForCausalLM",
        cases={"": {"sliding_window": None}, "window": {"sliding_window": 9, "head_dim": 16}},
    ),
    # As Llama under other names.
    "llama_old": Family(
        "LlamaForCausalLM",
        rewrite=named("LLaMAForCausalLM"),
        cases={"": {}, "odd": {"num_attention_heads": 3, "num_key_value_heads": 3}},
    ),
    "iquestcoder": Family(
        "LlamaForCausalLM",
        rewrite=named("IQuestCoderForCausalLM"),
        cases={
            "": {"head_dim": 16},
            "odd": {"head_dim": 10, "num_key_value_heads": 1, "tie_word_embeddings": True},
        },
    ),
    "internlm3": Family(
        "LlamaForCausalLM",
        {"head_dim": 16},
        rewrite=as_internlm3,
        cases={
            "": {},
            "biases": {"head_dim": 12, "attention_bias": True, "mlp_bias": True},
        },
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        cases={
            "": {"head_dim": 16},
            "odd": {"head_dim": 12, "attention_out_bias": True, "mlp_bias": True},
        },
    ),
    "cwm": Family(
        "CwmForCausalLM",
        {"num_hidden_layers": 5, "sliding_window": 9, "head_dim": 12, "bos_token_id": 1},
        cases={
            "": {"rope_parameters": LLAMA3},
            "odd": {
                "sliding_window": 5,
                "num_hidden_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "ministral": Family(
        "MinistralForCausalLM",
        {"head_dim": 16},
        cases={
            "": {"sliding_window": 9},
            "odd": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
        },
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        {"head_dim": 16},
        cases={
            "": {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.7}},
            "odd": {
                "head_dim": 6,
                "num_key_value_heads": 1,
                "rope_parameters": {
                    **YARN,
                    "llama_4_scaling_beta": 0.7,
                    "factor": 8.0,
                    "original_max_position_embeddings": 16,
                },
            },
        },
    ),
    "arcee": Family(
        "ArceeForCausalLM",
        cases={"": {}, "biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 20}},
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        cases={
            "": {},
            "odd": {
                "attention_bias": True,
                "mlp_bias": True,
                "head_dim": 16,
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
            },
        },
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        {"num_hidden_layers": 3, "no_rope_layer_interval": 2, "pad_token_id": None},
        cases={
            "": {},
            "odd": {
                "no_rope_layers": [0, 1, 1],
                "attention_bias": True,
                "tie_word_embeddings": False,
                "use_sliding_window": True,
                "sliding_window": 9,
            },
        },
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        {"num_hidden_layers": 4},
        cases={
            "": {"sliding_window": 9},
            "full": {
                "sliding_window": None,
                "layer_types": ["full_attention"] * 4,
                "num_key_value_heads": 1,
            },
        },
    ),
    "hunyuan": Family(
        "HunYuanDenseV1ForCausalLM",
        {"head_dim": 12},
        cases={
            "": {
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "rope_theta": 10000.0,
                    "alpha": 50.0,
                    "factor": 1.0,
                }
            },
            "odd": {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
        },
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        cases={"": {"head_dim": 16}, "biases": {"head_dim": 12, "use_bias": True}},
    ),
    "internlm2": Family(
        "LlamaForCausalLM",
        rewrite=as_internlm2,
        cases={"": {}, "odd": {"num_attention_heads": 6, "num_key_value_heads": 3}},
    ),
    "minicpm": Family(
        "GraniteForCausalLM",
        {"embedding_multiplier": 12.0, "attention_multiplier": 12**-0.5},
        rewrite=as_minicpm,
        cases={
            "": {"residual_multiplier": 1.4 / 2**0.5, "logits_scaling": 3.0},
            "odd": {
                "num_hidden_layers": 3,
                "residual_multiplier": 2 / 3**0.5,
                "tie_word_embeddings": True,
            },
        },
    ),
    "llama4": Family(
        "Llama4ForCausalLM",
        {
            "num_hidden_layers": 3,
            "no_rope_layer_interval": 3,
            "head_dim": 12,
            "num_local_experts": 5,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 56,
            "attention_chunk_size": 9,
            "floor_scale": 7,
            "attn_scale": 0.7,
        },
        cases={
            "": {},
            "odd": {
                "moe_layers": [0, 2],
                "no_rope_layers": [1, 0, 1],
                "num_experts_per_tok": 2,
                "attention_chunk_size": 20,
                "use_qk_norm": False,
                "attn_temperature_tuning": False,
                "attention_bias": True,
                "num_key_value_heads": 1,
            },
        },
    ),
    "nanochat": Family(
        "NanoChatForCausalLM",
        cases={
            "": {"final_logit_softcapping": 3.0},
            "odd": {"attention_bias": True, "head_dim": 16, "final_logit_softcapping": None},
        },
    ),
    "deci": Family(
        "LlamaForCausalLM",
        {"num_hidden_layers": 4},
        prepare=search_blocks,
        rewrite=as_deci,
        cases={"": {}, "tied": {"tie_word_embeddings": True}},
    ),
    "apertus": Family(
        "ApertusForCausalLM",
        cases={"": {}, "odd": {"attention_bias": True, "hidden_act": "relu2"}},
    ),
    "bitnet": Family(
        "BitNetForCausalLM",
        cases={"": {}, "odd": {"attention_bias": True, "num_key_value_heads": 1}},
    ),
    "solar": Family(
        "LlamaForCausalLM",
        {"num_hidden_layers": 4},
        prepare=skip_blocks,
        rewrite=as_solar,
        cases={"": {}, "tied": {"tie_word_embeddings": True, "attention_bias": True}},
    ),
    "minicpm3": Family(
        "MiniCPM3ForCausalLM",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "q_lora_rank": 20,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "dim_model_base": 16,
        },
        cases={
            "": {},
            "odd": {
                "num_attention_heads": 3,
                "num_key_value_heads": 3,
                "kv_lora_rank": 17,
                "q_lora_rank": None,
                "qk_nope_head_dim": 7,
                "qk_rope_head_dim": 8,
                "v_head_dim": 9,
                "attention_bias": True,
                "tie_word_embeddings": False,
                "rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
            },
        },
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        cases={"": {}, "clip": {"clip_qkv": 0.8, "attention_bias": True, "num_key_value_heads": 4}},
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        cases={
            "": {},
            "odd": {"attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True},
        },
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        {"num_hidden_layers": 4, "sliding_window": 9},
        cases={
            "": {},
            "yarn": {
                "layer_types": ["full_attention", *["sliding_attention"] * 3],
                "rope_parameters": {
                    "full_attention": YARN,
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                },
            },
        },
    ),
    "granite": Family(
        "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3},
        cases={
            "": {"logits_scaling": 2.0},
            "odd": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        },
    ),
    "hyperclovax": Family(
        "HyperCLOVAXForCausalLM",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 0.5},
        cases={
            "": {"head_dim": 16},
            "odd": {"use_post_norm": False, "attention_multiplier": 0.2, "num_key_value_heads": 1},
        },
    ),
    "cohere": Family(
        "CohereForCausalLM",
        {"logit_scale": 0.5},
        cases={
            "": {},
            "by-head": {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
        },
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        {"num_hidden_layers": 4, "sliding_window": 9},
        cases={
            "": {},
            "odd": {
                "layer_types": ["full_attention", *["sliding_attention"] * 3],
                "attention_bias": True,
                "num_key_value_heads": 1,
            },
        },
    ),
}
