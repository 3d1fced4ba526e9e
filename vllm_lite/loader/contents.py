"""The contents of a checkpoint by its tensors' names and types, before any of them is read."""

from __future__ import annotations

from pathlib import Path

from vllm_lite.config.model import LoadConfig
from vllm_lite.config.quantized.schemes import Scheme, Ternary
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.loader.formats import open_files
from vllm_lite.loader.stored import FLOATS
from vllm_lite.loader.weight_rules import WeightRules

# Suffixes of the tensors that make a layer's matrix, and of those that may be plain.
_MATRICES = (
    *("weight", "qweight", "B", "B_24", "W_q", "_weight_qdata", "weight_packed"),
    *("codes", "compressed"),
)
_PLAIN = ("weight", "compressed")
# Of what lies beside a matrix that is not plain, whatever type holds it.
_SCALES = ("weight_scale", "weight_scale_inv", "weight.absmax", "SCB")


def tensor_names(directory: Path, load: LoadConfig) -> list[str]:
    """The names of all tensors in `directory`."""
    return [name for file in open_files(directory, load) for name in file.names()]


def plain_layers(config: VllmConfig, scheme: Scheme | None) -> dict[str, bool]:
    """Whether a layer's weights are floating-point numbers; {} where all are, or none is.

    Those with scales beside them are not, whatever type holds them.
    """
    if config.load.load_format == "dummy" or scheme is None:
        return {}
    if isinstance(scheme.others, Ternary) and scheme.others.is_rounded:
        return {}
    opened = open_files(Path(config.facts.path), config.load)
    names = {name for file in opened for name in file.names()}
    found = {}
    for file in opened:
        for name in file.names():
            layer, _, suffix = name.rpartition(".")
            if suffix in _MATRICES:
                is_float = suffix in _PLAIN and file.entry(name)[0] in FLOATS
                found[layer] = is_float and names.isdisjoint(f"{layer}.{s}" for s in _SCALES)
    return found


def has_cache_scales(config: VllmConfig, scheme: Scheme | None, rules: WeightRules) -> bool:
    """Whether the checkpoint has scales for keys and values, by its settings or else its names."""
    if scheme is None or config.load.load_format == "dummy":
        return scheme is not None and bool(scheme.has_cache_scales)
    if scheme.has_cache_scales is not None:
        return scheme.has_cache_scales
    names = tensor_names(Path(config.facts.path), config.load)
    parts = (part for name in names for part, _ in rules.parts_of(rules.name_of(name)))
    return any(name.endswith(".self_attn.k_scale") for name in parts)
