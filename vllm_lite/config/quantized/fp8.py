"""Settings of checkpoints of 8-bit floats with scales for tensors, outputs or blocks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from vllm_lite.config.quantized.schemes import (
    CacheScales,
    Form,
    Rounded,
    Rounding,
    Scheme,
    Settings,
    StoredCodes,
)

TOKENS = Rounding("float8_e4m3fn", 8, "token")
TENSOR = Rounding("float8_e4m3fn", 8, "tensor", is_static=True)

# A scale for each output; inputs are taken as they are.
CHANNELS = StoredCodes("float8_e4m3fn", 8, block=(1, None))
_GROUPS = Rounding("float8_e4m3fn", 8, "group", 32, scale="e8m0")
# Of a mixture's routed experts alone.
_FLOAT4 = StoredCodes("float4_e2m1", 4, packing="pairs", block=(1, 32), scale_number="e8m0")
_EXPERTS = re.compile(r".*\.experts\.\d+\.")
# What tools call the scales; DeepSeek-V4's have the shortest name.
_SCALES = ("weight_scale", "weight_scale_inv", "scale")
MXFP8 = StoredCodes("float8_e4m3fn", 8, block=(1, 32), scale_number="e8m0", rounding=_GROUPS)


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    settings.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    block = settings.get("weight_block_size")
    schemes = ("dynamic",) if block else ("dynamic", "static")
    given = settings.choice("activation_scheme", schemes)
    left = settings.left_plain("ignored_layers", "modules_to_not_convert")
    experts = settings.choice("expert_dtype", (None, "fp8", "fp4"))
    settings.choice("moe_quant_algo", (None,))
    powers = settings.choice("scale_fmt", (None, "ue8m0"))
    cache = settings.choice("kv_cache_scheme", (None, "static"))
    caches = CacheScales("stored" if cache is None else "layer")
    if given == "static":
        settings.one_of("scale_fmt with static scales", powers, (None,))
        form = StoredCodes("float8_e4m3fn", 8, rounding=TENSOR, input_scale="input_scale")
    else:
        bare = StoredCodes("float8_e4m3fn", 8, rounding=TOKENS)
        form = blocks(settings, block) if block else bare
        if powers:
            form = replace(form, rounding=replace(form.rounding or TOKENS, scale=powers))
    patterns: tuple[tuple[re.Pattern[str], Form | None], ...] = left
    if experts == "fp4":
        of_experts = replace(
            _FLOAT4, scale=form.scale, rounding=form.rounding, input_scale=form.input_scale
        )
        patterns += ((_EXPERTS, of_experts),)
    names = {name: form.scale for name in _SCALES if name != form.scale}
    return Scheme(form, {}, patterns, caches, suffixes=names)


def blocks(
    settings: Settings,
    sides: object,
    scale: str = "weight_scale_inv",
    shape: Literal["matrix", "spread"] = "matrix",
) -> StoredCodes:
    """The form of weights whose blocks of outputs by inputs have scales."""
    if not isinstance(sides, list) or len(sides) != 2:
        raise settings.refusal(f"weight_block_size {sides!r}", "two sizes")
    rows, columns = sides
    if any(type(side) is not int or side < 1 for side in sides) or columns % 32:
        raise settings.refusal(f"weight_block_size {sides!r}", "outputs by a multiple of 32 inputs")
    rounding = Rounding("float8_e4m3fn", 8, "group", columns)
    return StoredCodes(
        "float8_e4m3fn", 8, scale=scale, block=(rows, columns), scale_shape=shape, rounding=rounding
    )


def read_fbgemm(settings: Settings) -> Scheme:
    """The scheme of a checkpoint by FBGEMM, with a scale for each output."""
    largest = settings.get("activation_scale_ub") or 0.0
    if not isinstance(largest, int | float) or largest < 0:
        raise settings.refusal(f"activation_scale_ub {largest!r}", "a number above zero")
    rounding = replace(TOKENS, largest=float(largest))
    form = replace(CHANNELS, rounding=rounding)
    return Scheme(form, patterns=settings.left_plain("modules_to_not_convert"))


def read_ptpc(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with a scale for each output, or of a plain one to round so."""
    form = replace(CHANNELS, rounding=TOKENS)
    left = settings.left_plain("ignored_layers")
    return Scheme(form, patterns=left, in_flight=Rounded(CHANNELS))


def read_mxfp8(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with a power of two for each 32 inputs."""
    left = settings.left_plain("modules_to_not_convert", "ignored_layers")
    return Scheme(MXFP8, patterns=left)
