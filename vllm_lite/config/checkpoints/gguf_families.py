"""Configurations of families whose GGUF headers say less, or say it by layer.

Each function changes the configuration that a file's header stands for, by the names and the
shapes of its tensors where these alone tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from vllm_lite.config.checkpoints.gguf_header import GGUFFile, shortest
from vllm_lite.config.checkpoints.gguf_hybrids import HYBRIDS
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

# Gemma divides scores by the root of a head's size, but in models with so many layers by that of
# a head's share of the width.
_LAYERS_OF_LARGEST = {"gemma2": 46, "gemma3": 62}


def _gemma(gguf: GGUFFile, config: Json) -> None:
    is_largest = config["num_hidden_layers"] == _LAYERS_OF_LARGEST[config["model_type"]]
    share = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = share if is_largest else config["head_dim"] or share


def _gemma3n(gguf: GGUFFile, config: Json) -> None:
    """Shares of gates that are 0 are told by where they end in a normal distribution."""
    if scales := gguf.of_architecture("activation_sparsity_scale"):
        config["activation_sparsity_pattern"] = [NormalDist().cdf(scale) for scale in scales]
    sizes = {
        "vocab_size_per_layer_input": "per_layer_token_embd.weight",
        "laurel_rank": "blk.0.laurel_l.weight",
    }
    config |= {k: gguf.tensors[name].shape[0] for k, name in sizes.items() if name in gguf.tensors}


def _gemma4(gguf: GGUFFile, config: Json) -> None:
    """Layers that attend to everything have heads of their own size and number."""
    get, count = gguf.of_architecture, config["num_hidden_layers"]
    pattern = get("attention.sliding_window_pattern").tolist()
    heads = _by_layer(get("attention.head_count_kv"), count)
    widths = _by_layer(get("feed_forward_length"), count)
    whole = {i: heads[i] for i in range(count) if not pattern[i]}
    local = [heads[i] for i in range(count) if pattern[i]]
    config["num_key_value_heads"] = (local or heads)[0]
    config["per_layer_config"] = {
        str(i): {"head_dim": get("attention.key_length"), "num_key_value_heads": number}
        for i, number in whole.items()
    }
    config["intermediate_size"] = widths[0]
    config["use_double_wide_mlp"] = widths[-1] != widths[0]
    config["attention_k_eq_v"] = any(
        f"blk.{i}.attn_k.weight" in gguf.tensors and f"blk.{i}.attn_v.weight" not in gguf.tensors
        for i in whole
    )
    if table := gguf.tensors.get("per_layer_token_embd.weight"):
        config["vocab_size_per_layer_input"] = table.shape[0]
    local_rotation = {"rope_type": "default", "rope_theta": shortest(get("rope.freq_base_swa"))}
    # Pairs that are not rotated have enormous divisors.
    factors = list(gguf.tensor_data("rope_freqs.weight").cast("f"))
    whole_rotation = {
        "rope_type": "proportional",
        "rope_theta": shortest(get("rope.freq_base")),
        "partial_rotary_factor": sum(factor == 1.0 for factor in factors) / len(factors),
    }
    config["rope_parameters"] = {
        "full_attention": whole_rotation,
        "sliding_attention": local_rotation,
    }


def _deci(gguf: GGUFFile, config: Json) -> None:
    """Layers that lack a block have none of its heads or none of its width."""
    count = config["num_hidden_layers"]
    heads, shared, widths = (
        _by_layer(gguf.of_architecture(key), count)
        for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    )
    if any(has and not key for has, key in zip(heads, shared, strict=True)):
        raise CheckpointError(
            f"{gguf.path} has layers with a linear map in place of attention, which are not "
            "supported"
        )
    config["num_key_value_heads"] = config["intermediate_size"] = None
    config["block_configs"] = [
        {
            "attention": {"no_op": not keys, "n_heads_in_group": query // keys if keys else None},
            "ffn": {"no_op": not width, "intermediate_size": width or None},
        }
        for query, keys, width in zip(heads, shared, widths, strict=True)
    ]


def _by_layer(value: Any, count: int) -> list[int]:
    return [value] * count if isinstance(value, int) else value.tolist()


def _encoder(gguf: GGUFFile, config: Json) -> None:
    types = gguf.tensors.get("token_types.weight")
    config["type_vocab_size"] = 0 if types is None else types.shape[0]
    period = gguf.of_architecture("attention.sliding_window_pattern")
    if isinstance(period, int):
        config["global_attn_every_n_layers"] = period


def _mimo2(gguf: GGUFFile, config: Json) -> None:
    """Layers with windows have keys of their own number; further layers are for drafts."""
    count, names = config["num_hidden_layers"], gguf.tensors
    kinds = config["layer_types"] = config["layer_types"][:count]
    keys = _by_layer(gguf.of_architecture("attention.head_count_kv"), count)
    for kind, field, place in (
        ("full_attention", "num_key_value_heads", "full"),
        ("sliding_attention", "swa_num_key_value_heads", "swa"),
    ):
        layers = [i for i in range(count) if kinds[i] == kind]
        config[field] = keys[layers[0]] if layers else keys[0]
        config[f"add_{place}_attention_sink_bias"] = any(
            f"blk.{i}.attn_sinks.weight" in names for i in layers
        )
    config["mlp_layer_types"] = [
        "sparse" if f"blk.{i}.ffn_gate_inp.weight" in names else "dense" for i in range(count)
    ]
    whole = config["rope_parameters"].get("full_attention", {})
    if "partial_rotary_factor" in whole:
        part = whole["partial_rotary_factor"]
        config["rope_parameters"]["sliding_attention"]["partial_rotary_factor"] = part


def _llama4(gguf: GGUFFile, config: Json) -> None:
    config["intermediate_size_mlp"] = config["intermediate_size"]
    config["intermediate_size"] = gguf.of_architecture("expert_feed_forward_length")
    # Maverick alone, of 128 experts, does without.
    config["use_qk_norm"] = config["num_experts"] != 128


REFINEMENTS: Mapping[str, Callable[[GGUFFile, Json], None]] = {
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "deci": _deci,
    "llama4": _llama4,
    "mimo2": _mimo2,
    **dict.fromkeys(("bert", "nomic-bert", "modern-bert", "jina-bert-v2"), _encoder),
    **HYBRIDS,
}
