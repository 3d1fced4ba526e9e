"""Settings of FP-Quant's checkpoints: floats of four bits, of inputs that a matrix turns first."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.quantized.schemes import Rounding, Scheme, Settings, StoredCodes

_MXFP4 = StoredCodes(
    "float4_e2m1",
    4,
    packing="pairs",
    weight="qweight",
    scale="scales",
    block=(1, 32),
    scale_number="e8m0",
    super_scale="weight_global_scale",
    divides=True,
    input_transform="forward_hadamard_matrix",
)
# Groups' largest values become 3 to 6.
_POWERS = Rounding("float4_e2m1", 4, "group", 32, scale="ue8m0", divisor=3)
_SPREAD = replace(_POWERS, scale="spread", divisor=1)
_STATIC = Rounding("float4_e2m1", 4, "group", 16, is_static=True, scale="float8_e4m3fn")
_NVFP4 = replace(
    _MXFP4,
    block=(1, 16),
    scale_number="float8_e4m3fn",
    scale_shape="bytes",
    rounding=_STATIC,
    input_scale="act_global_scale",
)


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    settings.choice("pseudoquantization", (False,), False)
    settings.choice("store_master_weights", (False,), False)
    number = settings.choice("forward_dtype", ("nvfp4", "mxfp4"), "nvfp4")
    methods = ("abs_max",) if number == "nvfp4" else ("abs_max", "quest")
    method = settings.choice("forward_method", methods, "abs_max")
    sizes = (16, 32, 64, 128) if number == "nvfp4" else (32, 64, 128)
    size: int = settings.choice("hadamard_group_size", (None, *sizes)) or sizes[0]
    form = _NVFP4 if number == "nvfp4" else _MXFP4
    if number == "mxfp4":
        form = replace(form, rounding=_POWERS if method == "abs_max" else _SPREAD)
    form = replace(form, transform_size=size)
    return Scheme(form, patterns=settings.left_plain("modules_to_not_convert"))
