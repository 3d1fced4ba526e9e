"""Settings of compressed-tensors' checkpoints."""

from __future__ import annotations

import re
from typing import Any

from vllm_lite.config.quantized.schemes import (
    CacheScales,
    Form,
    PackedIntegers,
    Rounding,
    Scheme,
    Settings,
    StoredCodes,
)
from vllm_lite.config.values import Json

_FORMATS = {
    "int-quantized": (("int",), "bytes"),
    "float-quantized": (("float",), "bytes"),
    "naive-quantized": (("int", "float"), "bytes"),
    "mxfp8-quantized": (("float",), "bytes"),
    "pack-quantized": (("int",), "words"),
    "nvfp4-pack-quantized": (("float",), "pairs"),
    "mxfp4-pack-quantized": (("float",), "pairs"),
    "mxfp6-pack-quantized": (("float",), "fours"),
    "marlin-24": (("int",), "words"),
}
_SPARSITIES = ("dense", "sparse-24-bitmask", "sparse-bitmask")
# Names of layers have none of a class's capitals.
_CLASS = re.compile(r"[A-Z]\w*")
_ATTENTION = re.compile(r"(?:Attention|attn)\$?\Z")
_FLOATS: dict[int, Any] = {8: "float8_e4m3fn", 6: "float6_e2m3", 4: "float4_e2m1"}


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    _check_transforms(settings)
    sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
    settings.one_of("sparsity_config.format", sparsity, _SPARSITIES)
    groups = list((settings.get("config_groups") or {}).values())
    if not groups and sparsity == "dense" and not settings.get("kv_cache_scheme"):
        raise settings.refusal("no config_groups", "one or more")
    caches = _cache_scales(settings, settings.get("kv_cache_scheme"))
    others: Form | None = None
    embeddings: Form | None = None
    named: dict[str, Form | None] = {}
    ignored, patterns = [], []
    for group in groups:
        if group.get("output_activations"):
            raise settings.refusal("output_activations", "weights and input_activations")
        if group.get("weights") is None:
            caches = _of_attention(settings, group) or caches
            continue
        form = _form(settings, group)
        for target in settings.changed(group).names("targets"):
            if target == "Linear":
                others = form
            elif target == "Embedding":
                embeddings = form
            elif target.startswith("re:"):
                patterns.append((settings.pattern(target[3:]), form))
            elif _CLASS.fullmatch(target):
                known = "targets Linear, Embedding, re: and a pattern, or the names of layers"
                raise settings.refusal(f"the target {target!r}, a class of modules", known)
            else:
                named[target] = form
    for name in settings.names("ignore"):
        if name.startswith("re:"):
            ignored.append((settings.pattern(name[3:]), None))
        else:
            named[name] = None
    return Scheme(
        others,
        named,
        (*ignored, *patterns),
        caches,
        embeddings,
        is_sparse=sparsity != "dense",
    )


def _check_transforms(settings: Settings) -> None:
    """Raise CheckpointError for transforms of more than weights, into which theirs are fused."""
    found = settings.table("transform_config", settings.get("transform_config"))
    schemes = settings.table("transform_config.config_groups", found.get("config_groups"))
    for name, scheme in schemes.items():
        for part in scheme.get("apply") or []:
            kinds = ("weight_input", "weight_output")
            settings.one_of(f"transform_config.{name}.location", part.get("location"), kinds)


def _cache_scales(settings: Settings, scheme: Json | None) -> CacheScales | None:
    """The scales of keys and values; dynamic ones are not stored. Raises CheckpointError."""
    if not scheme:
        return None
    dynamic = scheme.get("dynamic", False)
    if settings.one_of("kv_cache_scheme.dynamic", dynamic, (False, True)):
        return None
    kind, bits, strategy = (scheme.get(name) for name in ("type", "num_bits", "strategy"))
    is_even = scheme.get("symmetric", True)
    if (kind, bits, is_even) == ("float", 8, True) and strategy in ("tensor", "attn_head"):
        return CacheScales("layer" if strategy == "tensor" else "head")
    shift = "" if is_even else ", asymmetric"
    return CacheScales(other=f"{kind} of {bits} bits by {strategy}{shift}")


def _of_attention(settings: Settings, group: Json) -> CacheScales | None:
    """The scales of keys and values of a group without weights, which is of attention."""
    for target in settings.changed(group).names("targets"):
        if not _ATTENTION.search(target):
            raise settings.refusal(
                f"no weights for the target {target!r}", "such of attention alone"
            )
    return _cache_scales(settings, group.get("input_activations"))


def _form(settings: Settings, group: Json) -> StoredCodes | PackedIntegers:
    weights = _with_defaults(group.get("weights") or {})
    settings.one_of("weights.dynamic", weights.get("dynamic", False), (False,))
    kind = settings.one_of("weights.type", weights["type"], ("int", "float"))
    bits = weights["num_bits"]
    stored = group.get("format") or settings.get("format")
    if stored in (None, "mixed-precision"):
        stored = _usual_format(kind, bits, weights, group)
    settings.one_of("format", stored, tuple(_FORMATS))
    kinds, packing = _FORMATS[stored]
    settings.one_of("weights.type", kind, kinds)
    is_ordered = _is_ordered(settings, weights)
    if is_ordered and (kind == "float" or stored == "marlin-24"):
        raise settings.refusal(f"weights.actorder with {stored}", "it for packed integers alone")
    if stored == "marlin-24":
        width = settings.one_of("weights.num_bits", bits, (4, 8))
        size = _block(settings, weights)[1]
        return PackedIntegers("marlin_24_packed", width, size, is_symmetric=True)
    common: dict[str, Any] = {"packing": packing, **_inputs(settings, group)}
    if packing in ("pairs", "fours"):
        return _small_floats(settings, weights, stored, common)
    rounding = common.get("rounding")
    is_any = kind == "int" and (rounding is None or rounding.scope != "group")
    block = _block(settings, weights, is_any=is_any)
    if kind == "float":
        settings.one_of("weights.num_bits", bits, (8,))
        scale: Any = "e8m0" if stored == "mxfp8-quantized" else "float32"
        return StoredCodes("float8_e4m3fn", 8, block=block, scale_number=scale, **common)
    allowed = (8, 4) if packing == "bytes" else tuple(range(1, 9))
    bits = settings.one_of("weights.num_bits", bits, allowed)
    is_symmetric = weights.get("symmetric", True)
    return StoredCodes(
        "int",
        8 if packing == "bytes" else bits,
        weight="weight" if packing == "bytes" else "weight_packed",
        block=block,
        zero_point="" if is_symmetric else "weight_zero_point",
        order="weight_g_idx" if is_ordered else "",
        **common,
    )


def _with_defaults(given: Json) -> Json:
    """Settings of weights or of inputs, with what the package takes for those that are missing."""
    size = given.get("group_size")
    usual = "tensor" if size is None else "channel" if size == -1 else "group"
    missing = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": usual}
    found = missing | {name: value for name, value in given.items() if value is not None}
    words = {name: str(found[name]).lower() for name in ("type", "strategy")}
    return found | words


def _is_ordered(settings: Settings, weights: Json) -> bool:
    """Whether inputs are of groups that the checkpoint names.

    Orders of weights, called static too, ended with the tool's work.
    """
    order = weights.get("actorder")
    if isinstance(order, bool):
        return order
    order = order.lower() if isinstance(order, str) else order
    settings.one_of("weights.actorder", order, (None, "group", "dynamic", "weight", "static"))
    return order in ("group", "dynamic")


def _small_floats(settings: Settings, weights: Json, stored: str, common: Json) -> StoredCodes:
    """Floats of four or six bits in groups of one size."""
    bits = 6 if common["packing"] == "fours" else 4
    settings.one_of("weights.num_bits", weights.get("num_bits"), (bits,))
    settings.one_of("weights.strategy", weights.get("strategy"), ("tensor_group", "group"))
    is_two_level = stored.startswith("nv")
    size = 16 if is_two_level else 32
    settings.one_of("weights.group_size", weights.get("group_size", size), (size,))
    return StoredCodes(
        _FLOATS[bits],
        bits,
        weight="weight_packed",
        block=(1, size),
        scale_number="float8_e4m3fn" if is_two_level else "e8m0",
        super_scale="weight_global_scale" if is_two_level else "",
        divides=is_two_level,
        **common,
    )


def _usual_format(kind: str, bits: Any, weights: Json, group: Json) -> str:
    """The format of settings that do not say it."""
    if kind == "float" and bits == 4:
        return "nvfp4-pack-quantized" if weights.get("group_size") == 16 else "mxfp4-pack-quantized"
    if kind == "float":
        return "mxfp6-pack-quantized" if bits == 6 else "float-quantized"
    return "int-quantized" if group.get("input_activations") and bits == 8 else "pack-quantized"


def _block(
    settings: Settings, weights: Json, *, is_any: bool = False
) -> tuple[int | None, int | None]:
    """Outputs and inputs that share a scale; groups of inputs may be odd ones if `is_any`."""
    kinds = ("tensor", "channel", "group", "block")
    strategy = settings.one_of("weights.strategy", weights.get("strategy"), kinds)
    if strategy == "tensor":
        return None, None
    if strategy == "channel":
        return 1, None
    if strategy == "group":
        size = weights.get("group_size")
        step = 1 if is_any else 16
        if type(size) is not int or size < 1 or size % step:
            known = "1 and more" if is_any else "a multiple of 16"
            raise settings.refusal(f"weights.group_size {size!r}", known)
        return 1, size
    sides = weights.get("block_structure")
    if isinstance(sides, str):
        sides = [int(side) for side in re.findall(r"\d+", sides)]
    if not isinstance(sides, list) or len(sides) != 2 or any(side % 16 for side in sides):
        raise settings.refusal(f"weights.block_structure {sides!r}", "two multiples of 16")
    return sides[0], sides[1]


def _inputs(settings: Settings, group: Json) -> Json:
    """The rounding of inputs, and the suffix of their scale."""
    inputs = group.get("input_activations")
    if not inputs:
        return {}
    inputs = _with_defaults(inputs)
    kind = settings.one_of("input_activations.type", inputs["type"], ("int", "float"))
    bits = settings.one_of("input_activations.num_bits", inputs["num_bits"], (8, 6, 4))
    kinds = ("tensor", "token", "group", "tensor_group")
    scope = settings.one_of("input_activations.strategy", inputs.get("strategy"), kinds)
    number: Any = "int" if kind == "int" else _FLOATS[bits]
    if scope == "tensor_group":
        settings.one_of("input_activations with tensor_group", (kind, bits), (("float", 4),))
        size = settings.one_of("input_activations.group_size", inputs.get("group_size"), (16,))
        nested = Rounding(number, bits, "group", size, True, "float8_e4m3fn")
        return {"rounding": nested, "input_scale": "input_global_scale"}
    is_static = not inputs.get("dynamic")
    if is_static and scope != "tensor":
        raise settings.refusal(f"static scales of each {scope}", "static scales of a tensor")
    if is_static:
        settings.one_of("input_activations.num_bits with static scales", bits, (8,))
    evens = (True, False) if kind == "int" and bits == 8 else (True,)
    is_symmetric = settings.one_of(
        "input_activations.symmetric", inputs.get("symmetric", True), evens
    )
    size = inputs.get("group_size") or 0
    if scope == "group" and (not isinstance(size, int) or size < 16 or size % 16):
        raise settings.refusal(f"input_activations.group_size {size!r}", "a multiple of 16")
    is_mx = scope == "group" and size == 32 and kind == "float"
    scale: Any = "e8m0" if is_mx else "float32"
    size = size if scope == "group" else 0
    rounding = Rounding(number, bits, scope, size, is_static, scale, is_symmetric)
    if not is_static:
        return {"rounding": rounding}
    zero = "" if is_symmetric else "input_zero_point"
    return {"rounding": rounding, "input_scale": "input_scale", "input_zero_point": zero}
