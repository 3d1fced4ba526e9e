"""Settings of torchao's checkpoints in safetensors: one for all layers, or by their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vllm_lite.config.quantized.schemes import (
    Form,
    PackedIntegers,
    Rounding,
    Scheme,
    Settings,
    StoredCodes,
)

_NAMES: Any = {"weight": "_weight_qdata", "scale": "_weight_scale"}
_FLOAT8 = StoredCodes("float8_e4m3fn", 8, **_NAMES)
_INTEGERS = StoredCodes(
    "int", 8, zero_point="_weight_zero_point", may_lack_zeros=True, block=(1, None), **_NAMES
)
_POWERS: dict[str, Any] = {"block": (1, 32), "scale_number": "e8m0", "scale_shape": "tiles"}
_MX = {
    "float8_e4m3fn": replace(_FLOAT8, **_POWERS),
    "float4_e2m1fn_x2": StoredCodes("float4_e2m1", 4, packing="pairs", **_POWERS, **_NAMES),
}
_NVFP4 = StoredCodes(
    "float4_e2m1",
    4,
    packing="pairs",
    block=(1, 16),
    scale_number="float8_e4m3fn",
    scale_shape="tiles",
    super_scale="_weight_per_tensor_scale",
    **_NAMES,
)
_BY_NAME = ("FqnToConfig", "ModuleFqnToConfig")
# What came before the classes.
_FUNCTIONS = {
    "int4_weight_only": "Int4WeightOnlyConfig",
    "int8_weight_only": "Int8WeightOnlyConfig",
    "int8_dynamic_activation_int8_weight": "Int8DynamicActivationInt8WeightConfig",
    "float8_weight_only": "Float8WeightOnlyConfig",
    "float8_dynamic_activation_float8_weight": "Float8DynamicActivationFloat8WeightConfig",
}


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    found = settings.get("quant_type")
    kind = found.get("default") if isinstance(found, dict) else found
    patterns: list[tuple[re.Pattern[str], Form | None]] = []
    patterns += settings.left_plain("modules_to_not_convert")
    if isinstance(kind, str) and kind in _FUNCTIONS:
        kind = {"_type": _FUNCTIONS[kind], "_data": settings.get("quant_type_kwargs")}
    if not isinstance(kind, dict) or kind.get("_type") not in _BY_NAME:
        return Scheme(_form_of(settings, kind), patterns=tuple(patterns))
    data = settings.table("_data", kind.get("_data"))
    kinds = data.get("fqn_to_config") or data.get("module_fqn_to_config")
    named: dict[str, Form | None] = {}
    for name, one in settings.table("fqn_to_config", kinds).items():
        form = None if one is None else _form_of(settings, one)
        if name.startswith("re:"):
            patterns.append((settings.pattern(rf"(?:{name[3:]})\Z"), form))
        else:
            named[name.removesuffix(".weight")] = form
    others = named.pop("_default", None)
    return Scheme(others, named, tuple(patterns))


def _form_of(settings: Settings, kind: Any) -> Form:
    name = kind.get("_type") if isinstance(kind, dict) else kind
    read_kind = _KINDS[settings.one_of("quant_type", name, tuple(_KINDS))]
    found = kind.get("_data") if isinstance(kind, dict) else None
    return read_kind(settings.changed(settings.table("_data", found)))


def _int8(data: Settings) -> StoredCodes:
    if data.get("group_size") is not None:
        return replace(_INTEGERS, block=(1, data.group_size()))
    return replace(_INTEGERS, block=(1, _group_size(data, "granularity")))


def _int8_by_int8(data: Settings) -> StoredCodes:
    return replace(_int8(data), rounding=_rounding(data, "SYMMETRIC"))


def _int4(data: Settings, usual_packing: str = "plain") -> PackedIntegers:
    packing = _word(data, "int4_packing_format", usual_packing)
    data.one_of("int4_packing_format", packing.lower(), ("plain",))
    data = data.changed({"group_size": data.get("group_size", 128)})
    return PackedIntegers("torchao_int4", 4, data.group_size(), is_symmetric=True)


def _int4_by_float8(data: Settings) -> PackedIntegers:
    return replace(_int4(data, "preshuffled"), tokens="float8_e4m3fn")


def _intx(data: Settings, granularity: str = "granularity") -> StoredCodes:
    """A byte for each integer, of whatever bits."""
    data.one_of(
        "intx_packing_format",
        _word(data, "intx_packing_format", "UNPACKED_TO_INT8"),
        ("UNPACKED_TO_INT8",),
    )
    word = _word(data, "weight_dtype", "int8")
    bits = int(data.one_of("weight_dtype", word, tuple(f"int{n}" for n in range(1, 9)))[3:])
    return replace(_INTEGERS, bits=bits, block=(1, _group_size(data, granularity)))


def _intx_by_int8(data: Settings) -> StoredCodes:
    form = _intx(data, "weight_granularity")
    return replace(form, rounding=_rounding(data, "ASYMMETRIC"))


def _float8(data: Settings) -> StoredCodes:
    data.one_of("weight_dtype", _word(data, "weight_dtype", "float8_e4m3fn"), ("float8_e4m3fn",))
    return replace(_FLOAT8, block=_block(data, data.get("granularity") or "PerRow"))


def _float8_by_float8(data: Settings) -> StoredCodes:
    """Inputs of which a whole tensor shares a scale have one for each token here."""
    get = data.get
    data.one_of("activation_value_lb", get("activation_value_lb"), (None,))
    largest = get("activation_value_ub") or 0.0
    if not isinstance(largest, int | float) or largest < 0:
        raise data.refusal(f"activation_value_ub {largest!r}", "a number above zero")
    given = get("granularity") or "PerTensor"
    of_inputs, of_weights = given if isinstance(given, list) and len(given) == 2 else (given,) * 2
    size = _block(data, of_inputs)[1] or 0
    rounding = Rounding(
        "float8_e4m3fn", 8, "group" if size else "token", size, largest=float(largest)
    )
    return replace(_float8(data.changed({"granularity": of_weights})), rounding=rounding)


def _mx_by_mx(data: Settings) -> StoredCodes:
    """Scales of inputs are rounded up, or down as those of Open Compute's formats."""
    data.one_of("block_size", data.get("block_size", 32), (32,))
    word = data.one_of("weight_dtype", _word(data, "weight_dtype", "float8_e4m3fn"), tuple(_MX))
    data.one_of("activation_dtype", _word(data, "activation_dtype", "float8_e4m3fn"), (word,))
    form, mode = _MX[word], _word(data, "scaling_mode", "RCEIL")
    data.one_of("scaling_mode", mode, ("RCEIL", "FLOOR"))
    scale: Any = "ue8m0" if mode == "RCEIL" else "e8m0"
    return replace(form, rounding=Rounding(form.number, form.bits, "group", 32, scale=scale))


def _nvfp4(data: Settings) -> StoredCodes:
    has_factor = data.choice("use_dynamic_per_tensor_scale", (True, False), True)
    return _NVFP4 if has_factor else replace(_NVFP4, super_scale="")


def _nvfp4_by_nvfp4(data: Settings) -> StoredCodes:
    """Inputs of which a whole batch shares a factor have float32 scales of groups here."""
    step = data.one_of("step", _word(data, "step", "").lower(), ("", "convert"))
    form, rounding = _nvfp4(data), Rounding("float4_e2m1", 4, "group", 16)
    if not step and form.super_scale:
        return replace(form, rounding=rounding)
    rounding = replace(rounding, is_static=bool(step), scale="float8_e4m3fn")
    if not step:
        return replace(form, rounding=rounding)
    return replace(_NVFP4, rounding=rounding, input_scale="_weight_act_per_tensor_scale")


_KINDS: dict[str, Callable[[Settings], Form]] = {
    "Int8WeightOnlyConfig": _int8,
    "Int8DynamicActivationInt8WeightConfig": _int8_by_int8,
    "Int4WeightOnlyConfig": _int4,
    "IntxWeightOnlyConfig": _intx,
    "Int8DynamicActivationIntxWeightConfig": _intx_by_int8,
    "Float8WeightOnlyConfig": _float8,
    "Float8DynamicActivationFloat8WeightConfig": _float8_by_float8,
    "MXDynamicActivationMXWeightConfig": _mx_by_mx,
    "Float8DynamicActivationInt4WeightConfig": _int4_by_float8,
    "NVFP4WeightOnlyConfig": _nvfp4,
    "NVFP4DynamicActivationNVFP4WeightConfig": _nvfp4_by_nvfp4,
}


def _word(data: Settings, name: str, usual: str) -> str:
    """A setting that is a word, or an object of one."""
    value = data.get(name)
    value = value.get("_data") if isinstance(value, dict) else value
    return usual if value is None else re.sub(r"^torch\.", "", str(value))


def _rounding(data: Settings, usual: str) -> Rounding:
    word = _word(data, "act_mapping_type", usual)
    data.one_of("act_mapping_type", word, ("SYMMETRIC", "ASYMMETRIC"))
    return Rounding("int", 8, "token", is_symmetric=word == "SYMMETRIC")


def _group_size(data: Settings, name: str) -> int | None:
    """Inputs that share a scale; None: all of a row."""
    rows, size = _block(data, data.get(name) or "PerRow")
    data.one_of(f"rows of {name}", rows, (1,))
    return size


def _block(data: Settings, granularity: Any) -> tuple[int | None, int | None]:
    """Outputs and inputs that share a scale."""
    of = granularity.get("_data") or {} if isinstance(granularity, dict) else {}
    kind = granularity.get("_type") if isinstance(granularity, dict) else granularity
    known = ("PerTensor", "PerRow", "PerAxis", "PerGroup", "PerBlock")
    data.one_of("granularity", kind, known)
    if kind in ("PerTensor", "PerRow", "PerAxis"):
        data.one_of("granularity.axis", of.get("axis", 0), (0,))
        return (None, None) if kind == "PerTensor" else (1, None)
    if kind == "PerGroup":
        return 1, data.changed(of).group_size()
    sides = of.get("block_size")
    if not isinstance(sides, list) or len(sides) != 2 or not all(_is_side(side) for side in sides):
        raise data.refusal(f"granularity.block_size {sides!r}", "two sizes")
    return sides[0], sides[1]


def _is_side(side: object) -> bool:
    return type(side) is int and (side == 1 or (side > 0 and side % 32 == 0))
