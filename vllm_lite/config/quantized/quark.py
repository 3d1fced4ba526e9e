"""Settings of Quark's checkpoints: forms by layer for weights, inputs and the cache."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from vllm_lite.config.quantized.fp8 import blocks
from vllm_lite.config.quantized.schemes import (
    CacheScales,
    Form,
    Number,
    Rounding,
    Scheme,
    Settings,
    StoredCodes,
    layers_of,
)
from vllm_lite.config.values import Json

_SMALL: dict[str, tuple[Number, int]] = {
    "fp4": ("float4_e2m1", 4),
    "fp6_e2m3": ("float6_e2m3", 6),
    "fp6_e3m2": ("float6_e3m2", 6),
    "fp8_e4m3": ("float8_e4m3fn", 8),
}
_BYTES: dict[str, Number] = {"fp8_e4m3": "float8_e4m3fn", "int8": "int"}


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    _check_rotations(settings)
    cache = (settings.get("export") or {}).get("kv_cache_group") or []
    patterns: list[tuple[re.Pattern[str], Form | None]] = [*settings.left_plain("exclude")]
    for name, layer in (settings.get("layer_quant_config") or {}).items():
        # The cache rounds keys and values; queries beside them stay as they are.
        if cache and (name == "*q_proj" or _is_cached(name, cache)):
            layer = {**layer, "output_tensors": None}
        patterns.append((settings.pattern(layers_of(name)), _form(settings, layer)))
    kinds = settings.get("layer_type_quant_config") or {}
    linear = next((kinds[kind] for kind in kinds if str(kind).endswith("Linear")), None)
    whole = linear or settings.get("global_quant_config")
    others = None if not whole else _form(settings, whole)
    return Scheme(others, {}, tuple(patterns), _cache_scales(settings.values, cache))


def _check_rotations(settings: Settings) -> None:
    """Raise CheckpointError for rotations of more than weights, into which r1 and r2 are fused."""
    found = settings.get("algo_config") or []
    for algorithm in found if isinstance(found, list) else [found]:
        given = {**algorithm, **(algorithm.get("online_config") or {})}
        names = ["r3", "r4", "online_had", "online_rotation_layers"]
        names += ["online_r1_rotation"] if given.get("r1", True) else []
        online = [name for name in names if given.get(name)]
        if online:
            raise settings.refusal(f"algo_config.{online[0]}", "rotations of weights alone")


def _is_cached(name: str, cache: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in cache)


def _cache_scales(values: Json, names: list[str]) -> CacheScales | None:
    """The scales of keys and values, which are outputs of the layers `names`."""
    if not names:
        return None
    layers = (values.get("layer_quant_config") or {}).items()
    rounded = (layer for name, layer in layers if _is_cached(name, names))
    outputs = [level for layer in rounded for level in _levels(layer.get("output_tensors"))]
    kinds = {f"{level.get('dtype')} {level.get('qscheme')}" for level in outputs}
    return CacheScales(other=" and ".join(sorted(kinds - {"fp8_e4m3 per_tensor"})))


def _form(settings: Settings, layer: Json) -> Form | None:
    if _levels(layer.get("output_tensors")):
        raise settings.refusal("output_tensors", "those of export.kv_cache_group alone")
    if _levels(layer.get("bias")):
        raise settings.refusal("a quantised bias", "plain ones")
    weight = _levels(layer.get("weight"))
    if not weight:
        return None
    first = weight[0]
    if first.get("is_dynamic"):
        raise settings.refusal("dynamic weights", "static ones")
    inputs = _inputs(settings, _levels(layer.get("input_tensors")))
    dtype = first.get("dtype")
    if len(weight) == 2:
        found = [(level.get("dtype"), level.get("qscheme")) for level in weight]
        known = [("fp4", "per_group"), ("fp8_e4m3", "per_tensor")]
        settings.one_of("weight", found, (known,))
        settings.one_of("weight.group_size", first.get("group_size"), (16,))
        return StoredCodes(
            "float4_e2m1",
            4,
            packing="pairs",
            block=(1, 16),
            scale_number="float8_e4m3fn",
            super_scale="weight_scale_2",
            **inputs,
        )
    settings.one_of("weight.dtype", dtype, (*_SMALL, "int8"))
    schemes = ("per_tensor", "per_channel", "per_group", "per_block")
    scheme = settings.one_of("weight.qscheme", first.get("qscheme"), schemes)
    if scheme == "per_block" and first.get("scale_type") != "float8_e8m0fnu":
        form = blocks(settings, first.get("block_size"), "weight_scale")
        return StoredCodes(form.number, 8, block=form.block, rounding=inputs.get("rounding"))
    if scheme in ("per_group", "per_block"):
        size = first.get("group_size") if scheme == "per_group" else first.get("block_size")
        rows = size[0] if isinstance(size, list) and len(size) == 2 else 1
        settings.one_of("weight.group_size", size, (32, [rows, 32]))
        if scheme == "per_group":
            settings.one_of("weight.scale_format", first.get("scale_format"), ("e8m0",))
        number, bits = _SMALL[settings.one_of("weight.dtype", dtype, tuple(_SMALL))]
        packing: Any = {4: "pairs", 6: "fours", 8: "bytes"}[bits]
        return StoredCodes(
            number,
            bits,
            packing,
            block=(rows, 32),
            scale_number="e8m0",
            **inputs,
        )
    number = _BYTES[settings.one_of("weight.dtype", dtype, tuple(_BYTES))]
    settings.one_of("weight.symmetric", _is_even(first), (True,))
    is_whole = scheme == "per_tensor"
    return StoredCodes(
        number,
        8,
        block=(None, None) if is_whole else (1, None),
        scale_shape="flat",
        **inputs,
    )


def _levels(config: Any) -> list[Json]:
    """Settings of numbers, and of their scales where those are numbers of another kind."""
    if isinstance(config, list):
        return [level for level in config if level]
    return [config] if config else []


def _inputs(settings: Settings, levels: list[Json]) -> dict[str, Any]:
    """The fields of StoredCodes that say how inputs are rounded."""
    if not levels:
        return {}
    first = levels[0]
    if len(levels) == 2:
        settings.one_of("input_tensors.dtype", first.get("dtype"), ("fp4",))
        nested = Rounding("float4_e2m1", 4, "group", 16, True, "float8_e4m3fn")
        return {"rounding": nested, "input_scale": "input_scale_2"}
    dtype = settings.one_of("input_tensors.dtype", first.get("dtype"), (*_SMALL, "int8"))
    scheme = first.get("qscheme")
    if scheme == "per_group":
        number, bits = _SMALL[settings.one_of("input_tensors.dtype", dtype, tuple(_SMALL))]
        size = settings.one_of("input_tensors.group_size", first.get("group_size"), (32, 128))
        scale: Any = "e8m0" if first.get("scale_format") == "e8m0" else "float32"
        return {"rounding": Rounding(number, bits, "group", size, scale=scale)}
    settings.one_of("input_tensors.qscheme", scheme, ("per_tensor", "per_channel"))
    number = _BYTES[settings.one_of("input_tensors.dtype", dtype, tuple(_BYTES))]
    is_even = _is_even(first)
    if first.get("is_dynamic"):
        return {"rounding": Rounding(number, 8, "token", is_symmetric=is_even)}
    rounding = Rounding(number, 8, "tensor", is_static=True, is_symmetric=is_even)
    zero = "" if is_even else "input_zero_point"
    return {"rounding": rounding, "input_scale": "input_scale", "input_zero_point": zero}


def _is_even(level: Json) -> bool:
    return level.get("symmetric") is not False or level.get("dtype") != "int8"
