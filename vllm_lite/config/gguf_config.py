"""A GGUF header's metadata as the Hugging Face configuration of the same model."""

from __future__ import annotations

import struct
from typing import Any

from vllm_lite.config.architectures import ARCHITECTURES, GGUF_ARCHITECTURES
from vllm_lite.config.families.architecture import Architecture
from vllm_lite.config.family_config import READ_BY_ALL
from vllm_lite.config.gguf_header import GGUFArray, GGUFFile
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

# GGUF's name of a rotary scaling to transformers'; one not listed keeps its name.
_ROPE_TYPES = {"none": "default"}
# Keys of a scaling, after "rope.scaling.", to parameters of transformers'.
_ROPE_FIELDS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_WITH_WINDOWS = {
    "LlamaForCausalLM": "MistralForCausalLM",
    "Olmo2ForCausalLM": "Olmo3ForCausalLM",
}
# Fields that say whether the first layer has a tensor.
_SEEN = {
    "attention_bias": "blk.0.attn_q.bias",
    "use_bias": "blk.0.attn_output.bias",
    "attention_out_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_up.bias",
    "use_qk_norm": "blk.0.attn_q_norm.weight",
}
# Files leave out what Gemma divides scores by: the root of a head's size, but in models with so
# many layers that of a head's share of the width.
_LAYERS_OF_LARGEST = {"gemma2": 46, "gemma3": 62}
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


def hf_config_of(gguf: GGUFFile) -> Json:
    """The configuration that transformers would have for this file's model."""
    metadata = gguf.metadata
    name = metadata.get("general.architecture")
    row = GGUF_ARCHITECTURES.get(name) if isinstance(name, str) else None
    architecture = None if row is None else row.name
    _refuse_unsupported(gguf, name, architecture)

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{name}.{key}", default)

    window = get("attention.sliding_window") or None
    if window:
        # Converters write both under one name.
        architecture = _WITH_WINDOWS.get(str(architecture), architecture)
    num_heads = _per_layer(gguf, get("attention.head_count"))
    hidden_size = get("embedding_length")
    head_size = get("attention.key_length")
    latents: Json = {}
    if rank := get("attention.kv_lora_rank"):
        # The usual sizes are those of products with latents themselves.
        rotary_size, key_size = get("rope.dimension_count"), get("attention.key_length_mla")
        latents = {
            "kv_lora_rank": rank,
            "q_lora_rank": get("attention.q_lora_rank"),
            "qk_rope_head_dim": rotary_size,
            "qk_nope_head_dim": (key_size or head_size) - rotary_size,
            "v_head_dim": get("attention.value_length_mla") or get("attention.value_length"),
        }
        head_size = rotary_size
    config: Json = {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES.get(str(architecture), name),
        "num_hidden_layers": get("block_count"),
        "hidden_size": hidden_size,
        "intermediate_size": _per_layer(gguf, get("feed_forward_length")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _per_layer(gguf, get("attention.head_count_kv", num_heads)),
        "head_dim": head_size,
        "hidden_act": "silu" if row is None else row.defaults.get("hidden_act", "silu"),
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon", 1e-6)),
        "max_position_embeddings": get("context_length"),
        "vocab_size": _vocab_size(gguf, get("vocab_size")),
        "sliding_window": window,
        "rope_parameters": _rope_parameters(
            gguf, get, head_size or (hidden_size // num_heads if num_heads else None)
        ),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        # What llama.cpp's files have no field for is as llama.cpp computes it.
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "norm_topk_prob": True if get("expert_count") else None,
        "decoder_sparse_step": 1 if get("expert_count") else None,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [
            metadata[key]
            for key in (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
            if key in metadata
        ],
    }
    pattern = get("attention.sliding_window_pattern")
    if isinstance(pattern, GGUFArray) and window:
        kinds = {True: "sliding_attention", False: "full_attention"}
        config["layer_types"] = [kinds[bool(is_local)] for is_local in pattern]
    config |= latents
    if row is not None:
        _add_family(config, row, gguf)
    return {key: value for key, value in config.items() if value is not None}


def _add_family(config: Json, row: Architecture, gguf: GGUFFile) -> None:
    """Add the fields that the family of `row` reads, from the header and from the tensors."""
    name, defaults = gguf.metadata["general.architecture"], row.defaults
    known = READ_BY_ALL | row.reads
    config |= {key: defaults[key] for key in row.reads if key in defaults and key not in config}
    config |= row.gguf_fixed
    if "query_pre_attn_scalar" in row.reads:
        is_largest = config["num_hidden_layers"] == _LAYERS_OF_LARGEST.get(name)
        share = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = share if is_largest else config["head_dim"] or share
    usual = {key: tensor for key, tensor in _SEEN.items() if key in known}
    for key, tensor in {**usual, **row.gguf_seen}.items():
        is_there = tensor.removeprefix("!") in gguf.tensors
        config[key] = is_there != tensor.startswith("!")
    for key, own in row.gguf_fields.items():
        value = gguf.metadata.get(f"{name}.{key}")
        if isinstance(value, GGUFArray):
            value = value.tolist()
        *outer, last = own.split(".")
        place = config
        for part in outer:
            place = place.setdefault(part, {})
        if value is not None:
            place[last] = _shortest(value)


def _refuse_unsupported(gguf: GGUFFile, name: Any, architecture: str | None) -> None:
    if architecture is None:
        raise CheckpointError(
            f"{gguf.path} holds the architecture {name!r}; "
            f"supported in GGUF files are {', '.join(GGUF_ARCHITECTURES)}"
        )
    row = ARCHITECTURES[architecture]
    if gguf.metadata.get(f"{name}.expert_count") and "num_experts" not in row.reads:
        raise CheckpointError(
            f"{gguf.path} is a mixture of experts, which {name} is not here; supported mixtures "
            f"are {', '.join(n for n, r in GGUF_ARCHITECTURES.items() if 'num_experts' in r.reads)}"
        )
    if gguf.metadata.get("split.count", 1) > 1:
        raise CheckpointError(
            f"{gguf.path} is one of several parts; join them with llama-gguf-split --merge"
        )


def _per_layer(gguf: GGUFFile, value: Any) -> Any:
    """A size that may be given for each layer, where all layers must agree."""
    if value is None or isinstance(value, int):
        return value
    sizes = set(value)
    if len(sizes) != 1:
        raise CheckpointError(f"{gguf.path} has layers of different sizes, which are not supported")
    return sizes.pop()


def _vocab_size(gguf: GGUFFile, stated: Any) -> Any:
    """Rows of the embedding: padding may make them more than the tokens."""
    embedding = gguf.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding is not None else stated


def _rope_parameters(gguf: GGUFFile, get: Any, head_size: Any) -> Json:
    kind = get("rope.scaling.type", "none")
    rope: Json = {
        "rope_type": _ROPE_TYPES.get(kind, kind),
        "rope_theta": _shortest(get("rope.freq_base", 10000.0)),
    }
    rotated = get("rope.dimension_count")
    if rotated and head_size and rotated != head_size:
        rope["partial_rotary_factor"] = rotated / head_size
    factors = {name: f"rope_factors_{name}.weight" for name in ("short", "long")}
    if all(name in gguf.tensors for name in factors.values()):
        rope["rope_type"] = "longrope"
        for name, tensor in factors.items():
            values = gguf.tensor_data(tensor).cast("f")
            rope[f"{name}_factor"] = [_shortest(value) for value in values]
        if scale := get("rope.scaling.attn_factor"):
            rope["attention_factor"] = _shortest(scale)
    if rope["rope_type"] != "default":
        given = {own: get(f"rope.scaling.{key}") for key, own in _ROPE_FIELDS.items()}
        rope |= {key: _shortest(value) for key, value in given.items() if value}
        if scale := get("rope.scaling.yarn_log_multiplier"):
            rope |= {"mscale": 1.0, "mscale_all_dim": _shortest(scale)}
        if strength := get("attention.temperature_scale"):
            rope["llama_4_scaling_beta"] = _shortest(strength)
    if get("attention.sliding_window") and (local := get("rope.freq_base_swa")):
        local_rope = {"rope_type": "default", "rope_theta": _shortest(local)}
        return {"full_attention": rope, "sliding_attention": local_rope}
    return rope


def _shortest(value: Any) -> Any:
    """A float32 of the file as the decimal it was written from: 9.99999e-06 is 1e-05."""
    if not isinstance(value, float):
        return value
    for digits in range(6, 9):
        text = float(f"{value:.{digits}g}")
        if struct.pack("<f", text) == struct.pack("<f", value):
            return text
    return value
