"""Settings of ModelOpt's checkpoints, of one algorithm or of one for each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm_lite.config.quantized.fp8 import MXFP8, TENSOR, TOKENS, blocks
from vllm_lite.config.quantized.schemes import (
    CacheScales,
    Form,
    Rounding,
    Scheme,
    Settings,
    StoredCodes,
)

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
_INT4 = StoredCodes("int", 4, packing="outputs", input_factor="pre_quant_scale")
# Integers of four bits in groups. A second scale, of weights as floats of eight bits within a
# product by such, changes none of their values.
_AWQ = {
    "W4A16_AWQ": _INT4,
    "W4A8_AWQ": replace(_INT4, rounding=TENSOR, input_scale="input_scale"),
}


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    nested = settings.get("quantization")
    settings = settings.changed(nested) if isinstance(nested, dict) else settings
    patterns = settings.left_plain("exclude_modules", "ignore")
    cache = settings.get("kv_cache_quant_algo") or settings.get("kv_cache_scheme")
    scales = _cache_scales(settings, cache)
    if cache and settings.get("quant_algo") is None:
        return Scheme(None, patterns=patterns, cache_scales=scales)
    if str(settings.get("quant_algo")).upper() != "MIXED_PRECISION":
        form = _form(settings)
        return Scheme(form, patterns=patterns, cache_scales=scales)
    layers = settings.get("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        raise settings.refusal("no quantized_layers", "MIXED_PRECISION with one or more")
    bare = {"quant_algo": None, "group_size": None}
    named: dict[str, Form | None] = {
        name: _form(settings.changed({**bare, **settings.table(f"layer {name}", layer)}))
        for name, layer in layers.items()
    }
    return Scheme(None, named, patterns, scales)


def _form(settings: Settings) -> StoredCodes:
    """The form of all layers, or of one."""
    algorithm = str(settings.get("quant_algo") or "").upper()
    if algorithm in _AWQ:
        settings.choice("has_zero_point", (False,), False)
        return replace(_AWQ[algorithm], block=(1, settings.group_size()))
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
    settings.one_of("quant_algo", algorithm, (*forms, *_AWQ, "MIXED_PRECISION"))
    if "NVFP4" in algorithm:
        settings.choice("group_size", (16, None))
    if algorithm not in forms:
        raise settings.refusal("MIXED_PRECISION within a layer", ", ".join(forms))
    return forms[algorithm]


def _cache_scales(settings: Settings, cache: Any) -> CacheScales | None:
    """The scales of keys and values, by the name of an algorithm or by numbers' kind and bits."""
    if isinstance(cache, dict):
        kind, bits = cache.get("type"), cache.get("num_bits")
        cache = "FP8" if (kind, bits) == ("float", 8) else f"{kind} of {bits} bits"
    if cache and not isinstance(cache, str):
        raise settings.refusal(f"kv_cache_quant_algo {cache!r}", "the name of one")
    if not cache:
        return None
    return CacheScales(other="" if cache.upper() == "FP8" else cache)
