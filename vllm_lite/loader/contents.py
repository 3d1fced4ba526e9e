"""The contents of a checkpoint by its tensors' names and types, before any of them is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from torch import nn

from vllm_lite.config.model import LoadConfig
from vllm_lite.config.quantized.registry import read_scheme
from vllm_lite.config.quantized.schemes import Form, PackedIntegers, Scheme, Ternary
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.attention import ScaledCacheAttention
from vllm_lite.loader.formats import SHARDED, open_files
from vllm_lite.loader.stored import FLOATS, TensorFile, stored_tensor
from vllm_lite.loader.weight_rules import WHOLE, WeightRules
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# Suffixes of the tensors that make a layer's matrix, and of those that may be plain.
_MATRICES = (
    *("weight", "qweight", "B", "B_24", "W_q", "_weight_qdata", "weight_packed"),
    *("codes", "compressed"),
)
_PLAIN = ("weight", "compressed")
# Of what lies beside a matrix that is not plain, whatever type holds it.
_SCALES = ("weight_scale", "weight_scale_inv", "scale", "weight.absmax", "SCB")


def tensor_names(directory: Path, load: LoadConfig) -> list[str]:
    """The names of all tensors in `directory`."""
    return [name for file in open_files(directory, load) for name in file.names()]


def scheme_of(config: VllmConfig) -> Scheme | None:
    """The scheme of the checkpoint, with what only the tensors of BitBLAS's files tell.

    Their codes are in pairs, for which it has fast kernels, where scales are float16.
    """
    facts = config.facts
    scheme = read_scheme(facts.path, facts.hf_config)
    if config.load.load_format == "dummy" or scheme is None or not _is_bitblas(scheme.others):
        return scheme
    types = {
        name.rpartition(".")[2]: file.entry(name)[0]
        for file in open_files(Path(facts.path), config.load)
        for name in file.names()
    }
    zeros = "qzeros" if "qzeros" in types else "zeros"

    def told(form: Form | None) -> Form | None:
        if not isinstance(form, PackedIntegers):
            return form
        return replace(form, is_paired=types.get("scales") == "F16", zeros=zeros)

    patterns = tuple((pattern, told(form)) for pattern, form in scheme.patterns)
    return replace(scheme, others=told(scheme.others), patterns=patterns)


def _is_bitblas(form: Form | None) -> bool:
    return isinstance(form, PackedIntegers) and form.layout == "bitblas"


def plain_layers(config: VllmConfig, scheme: Scheme | None, rules: WeightRules) -> dict[str, bool]:
    """Whether a layer's weights are read as floats, by its name's `source_of`.

    Those with scales beside them are not, whatever type holds them; floats of four bits in blocks
    are, as they are expanded. {} where all are, or none is.
    """
    if config.load.load_format == "dummy" or scheme is None:
        return {}
    if isinstance(scheme.others, Ternary) and scheme.others.is_rounded:
        return {}
    has_own_names = config.load.load_format in SHARDED
    held: dict[str, tuple[TensorFile, str]] = {}
    for file in open_files(Path(config.facts.path), config.load):
        for name in file.names():
            if has_own_names or (rules.has_place(name) and rules.stack_of(name) is None):
                held[name] = file, name
            elif rules.has_place(name):
                slices = stored_tensor(file, name, None).slices(rules)
                held |= {item.name: (file, name) for item in slices}
    found = {}
    for name, (file, stored) in held.items():
        layer, _, suffix = name.rpartition(".")
        if suffix in _MATRICES:
            is_float = suffix in _PLAIN and file.entry(stored)[0] in FLOATS
            is_plain = is_float and not any(f"{layer}.{scale}" in held for scale in _SCALES)
            takers = [(name, WHOLE)]
            if not has_own_names:
                takers = rules.parts_of(rules.name_of(name))
            for target, _ in takers:
                own = rules.source_of(target.rpartition(".")[0])
                found[own] = is_plain or stored.endswith("_blocks")
    return found


def cache_scales(
    config: VllmConfig, scheme: Scheme | None, rules: WeightRules
) -> Literal["layer", "head"] | None:
    """Whose keys and values have scales that the cache uses, by the settings or else the names.

    Warns of scales that are left out; raises CheckpointError for those of no cache here.
    """
    scales, kind = None if scheme is None else scheme.cache_scales, config.cache.kv_cache_dtype
    if scales is None:
        return None
    if kind not in ("fp8", "fp8_e4m3"):
        if scales.scope != "stored":
            _warn_of_scales(config.facts.path, scales.other, kind)
        return None
    if scales.other:
        raise CheckpointError(
            f"{config.facts.path} has scales for a cache of {scales.other}, which this build does "
            "not have; use --kv-cache-dtype auto"
        )
    if scales.scope != "stored":
        return scales.scope
    if config.load.load_format == "dummy":
        return None
    names = tensor_names(Path(config.facts.path), config.load)
    parts = (part for name in names for part, _ in rules.parts_of(rules.name_of(name)))
    return "layer" if any(name.endswith(".self_attn.k_scale") for name in parts) else None


def warn_unless_scales_are_used(model: nn.Module, path: str) -> None:
    """Warn of a checkpoint's cache scales if no attention layer of the model takes them."""
    if not any(isinstance(part, ScaledCacheAttention) for part in model.modules()):
        logger.warning("%s has scales for its KV cache, which this model leaves out", path)


@cache
def _warn_of_scales(path: str, other: str, kind: str) -> None:
    """Say once in a process that a checkpoint's scales are not used."""
    advice = "" if other else "; fp8 uses them"
    logger.warning(
        "%s has scales for a cache of %s, which --kv-cache-dtype %s leaves out%s",
        *(path, other or "8-bit floats", kind, advice),
    )
