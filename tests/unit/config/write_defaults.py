"""Writes what transformers' configuration classes assume of fields that a file leaves out.

python -m tests.unit.config.write_defaults > vllm_lite/config/families/defaults.json
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.checkpoints.family_config import READ_BY_ALL
from vllm_lite.config.families.architecture import Architecture

# Written from a model's own settings, not by its class, or said by other fields.
_NOT_DEFAULTS = {
    *("architectures", "model_type", "dtype", "torch_dtype", "layer_types"),
    *("rope_parameters", "rope_scaling", "n_positions", "max_seq_len", "seq_length"),
    "per_layer_config",
}
_ROTARY = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}
# Sizes that other fields are derived from.
_SIZES = (
    *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "intermediate_size"),
)


def _own_names(row: Architecture) -> dict[str, str]:
    return {usual: own for own, usual in row.aliases.items()}


def _fields(row: Architecture, config: Any) -> dict[str, Any]:
    own = _own_names(row)
    # Of fields that layers may have by themselves, those of the whole.
    config.allow_global_per_layer_attribute_access = True
    names = sorted((READ_BY_ALL | row.reads) - _NOT_DEFAULTS - set(_ROTARY))
    fields = {
        name: getattr(config, own.get(name, name), getattr(config, name, None)) for name in names
    }
    rope = getattr(config, "rope_parameters", None) or {}
    fields |= {name: rope.get(name) for name in _ROTARY if rope.get(name) != _ROTARY[name]}
    return {
        name: value
        for name, value in fields.items()
        if value is not None and not isinstance(value, transformers.PreTrainedConfig)
    }


def class_defaults(row: Architecture) -> dict[str, Any]:
    """By their usual names; without what the class derives from other fields."""
    config = getattr(transformers, row.name).config_class()
    config = getattr(config, "text_config", None) or config
    fields, own = _fields(row, config), _own_names(row)
    for size in _SIZES:
        if not isinstance(vars(config).get(size), int):
            continue
        with suppress(ValueError, StrictDataclassError):  # sizes that must agree
            other = _fields(row, type(config)(**{size: 2 * getattr(config, size)}))
            fields = {
                name: value
                for name, value in fields.items()
                if size in (name, own.get(name)) or other.get(name) == value
            }
    return fields


def main() -> None:
    table = {row.name: class_defaults(row) for row in ARCHITECTURES.values() if not row.like}
    lines = (f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table))
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
