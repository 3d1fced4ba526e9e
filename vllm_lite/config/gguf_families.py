"""Configurations of families whose GGUF headers say less, or say it by layer.

Each function changes the configuration that a file's header stands for, by the names and the
shapes of its tensors where these alone tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm_lite.config.gguf_header import GGUFFile
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

# Gemma divides scores by the root of a head's size, but in models with so many layers by that of
# a head's share of the width.
_LAYERS_OF_LARGEST = {"gemma2": 46, "gemma3": 62}


def _gemma(gguf: GGUFFile, config: Json) -> None:
    is_largest = config["num_hidden_layers"] == _LAYERS_OF_LARGEST[config["model_type"]]
    share = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = share if is_largest else config["head_dim"] or share


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


def _llama4(gguf: GGUFFile, config: Json) -> None:
    config["intermediate_size_mlp"] = config["intermediate_size"]
    config["intermediate_size"] = gguf.of_architecture("expert_feed_forward_length")
    # Maverick alone, of 128 experts, does without.
    config["use_qk_norm"] = config["num_experts"] != 128


REFINEMENTS: Mapping[str, Callable[[GGUFFile, Json], None]] = {
    "gemma2": _gemma,
    "gemma3": _gemma,
    "deci": _deci,
    "llama4": _llama4,
}
