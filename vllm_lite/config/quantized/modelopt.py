"""Settings of ModelOpt's checkpoints, of one algorithm or of one for each layer."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from typing import Any

from vllm_lite.config.quantized.fp8 import MXFP8, TENSOR, TOKENS, blocks
from vllm_lite.config.quantized.schemes import (
    Form,
    Rounding,
    Scheme,
    Settings,
    StoredCodes,
)
from vllm_lite.config.values import Json

_NV = Rounding("float4_e2m1", 4, "group", 16, is_static=True, scale="float8_e4m3fn")
_NVFP4: dict[str, Any] = {
    "packing": "pairs",
    "block": (1, 16),
    "scale_number": "float8_e4m3fn",
    "super_scale": "weight_scale_2",
}
NVFP4 = StoredCodes("float4_e2m1", 4, rounding=_NV, input_scale="input_scale", **_NVFP4)
_CHANNELS = StoredCodes("float8_e4m3fn", 8, block=(1, None), scale_shape="flat", rounding=TOKENS)
_BLOCK = [128, 128]


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    nested = values.get("quantization")
    values = {**values, **nested} if isinstance(nested, dict) else values
    settings = Settings(path, values)
    kept = values.get("exclude_modules") or values.get("ignore") or []
    patterns = tuple((wildcard(str(name)), None) for name in kept)
    cache = values.get("kv_cache_quant_algo") or values.get("kv_cache_scheme")
    algorithm = str(values.get("quant_algo", "")).upper()
    if cache and values.get("quant_algo") is None:
        return Scheme(None, patterns=patterns, has_cache_scales=_is_fp8(settings, cache))
    if algorithm != "MIXED_PRECISION":
        form = _form(settings, algorithm, values.get("group_size"))
        return Scheme(form, patterns=patterns, has_cache_scales=_is_fp8(settings, cache))
    layers = values.get("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        raise settings.refusal("no quantized_layers", "MIXED_PRECISION with one or more")
    named: dict[str, Form | None] = {
        name: _form(settings, str(layer.get("quant_algo", "")).upper(), layer.get("group_size"))
        for name, layer in layers.items()
    }
    return Scheme(None, named, patterns, _is_fp8(settings, cache))


def wildcard(name: str) -> re.Pattern[str]:
    """The layers that a wildcard names, those of a module or of a part of its name."""
    if "*" in name:
        return re.compile(fnmatch.translate(name))
    return re.compile(rf"(.*\.)?{re.escape(name)}(\.|$)")


def _form(settings: Settings, algorithm: str, group_size: Any) -> StoredCodes:
    forms = {
        "FP8": StoredCodes("float8_e4m3fn", 8, rounding=TENSOR, input_scale="input_scale"),
        "FP8_PER_CHANNEL_PER_TOKEN": _CHANNELS,
        "FP8_PB_WO": blocks(settings, _BLOCK, "weight_scale", "spread"),
        "FP8_BLOCK_SCALES": blocks(settings, _BLOCK, "weight_scale", "spread"),
        "NVFP4": NVFP4,
        "NVFP4_AWQ": replace(NVFP4, input_factor="pre_quant_scale"),
        "W4A16_NVFP4": StoredCodes("float4_e2m1", 4, **_NVFP4),
        "MXFP8": MXFP8,
    }
    if algorithm == "W4A16_AWQ":
        return _awq(settings.changed({"group_size": group_size}))
    settings.one_of("quant_algo", algorithm, (*forms, "W4A16_AWQ", "MIXED_PRECISION"))
    if "NVFP4" in algorithm:
        settings.one_of("group_size", group_size, (16, None))
    if algorithm not in forms:
        raise settings.refusal("MIXED_PRECISION within a layer", ", ".join(forms))
    return forms[algorithm]


def _awq(settings: Settings) -> StoredCodes:
    """Integers of four bits in groups."""
    has_zeros = settings.values.get("has_zero_point", False)
    settings.one_of("has_zero_point", has_zeros, (False,))
    block = (1, settings.group_size())
    return StoredCodes("int", 4, packing="outputs", block=block, input_factor="pre_quant_scale")


def _is_fp8(settings: Settings, cache: Any) -> bool:
    if isinstance(cache, dict):
        cache = "FP8" if (cache.get("type"), cache.get("num_bits")) == ("float", 8) else str(cache)
    name = settings.one_of("kv_cache_quant_algo", cache or None, (None, "FP8", "fp8"))
    return name is not None
