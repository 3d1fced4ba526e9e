"""Plain checkpoints whose layers are rounded as they are loaded: names of forms, and which layer.

`--quantization` names one form for all; `--quantization-config` says more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from vllm_lite.config.quantized.fp8 import CHANNELS, MXFP8
from vllm_lite.config.quantized.schemes import NF4, Rounding, StoredCodes, layers_of, names_of
from vllm_lite.config.values import Json
from vllm_lite.errors import UsageError

# From a token's least value to its greatest: a few large values all have one sign where a layer's
# inputs are normalised, and an activation's least value is near zero.
_TOKENS: Final = Rounding("int", 8, "token", is_symmetric=False)
# What layers become; their inputs are taken as they are, but where a rounding says otherwise.
CODES: Final[dict[str, StoredCodes]] = {
    **dict.fromkeys(("fp8", "fp8_per_channel", "ptpc_fp8"), CHANNELS),
    "fp8_per_tensor": StoredCodes("float8_e4m3fn", 8),
    "fp8_per_block": StoredCodes("float8_e4m3fn", 8, block=(128, 128)),
    "mxfp8": replace(MXFP8, rounding=None),
    "int8_per_channel_weight_only": StoredCodes("int", 8, block=(1, None)),
    "int8_per_channel": StoredCodes("int", 8, block=(1, None), rounding=_TOKENS),
    "rtn": StoredCodes("int", 8, block=(1, 128)),
    "nf4": NF4,
    "bitsandbytes": NF4,
    "mxfp4": StoredCodes("float4_e2m1", 4, block=(1, 32), scale_number="e8m0"),
    "nvfp4": StoredCodes(
        *("float4_e2m1", 4),
        block=(1, 16),
        scale_number="float8_e4m3fn",
        super_scale="weight_scale_2",
    ),
}
_GGUF_TYPES: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
# GGUF's types of blocks, by all their names here.
BLOCKS: Final[dict[str, str]] = {
    "int8": "Q8_0",
    "int4": "Q4_1",
    **{name.lower(): name for name in _GGUF_TYPES},
    **{name: name for name in _GGUF_TYPES},
}
# Names of forms for a mixture's experts alone, and their forms.
EXPERTS: Final = {"experts_int8": "int8_per_channel_weight_only"}
IN_FLIGHT: Final = (*CODES, *BLOCKS)
_FLAG: Final = "--quantization-config"


@dataclass(frozen=True, slots=True)
class InFlight:
    """The name by which each layer of a plain checkpoint is rounded."""

    linear: str | None
    # Experts of a mixture.
    moe: str | None
    ignore: tuple[re.Pattern[str], ...] = ()
    # Layers that are rounded at all; none: every one.
    targets: tuple[re.Pattern[str], ...] = ()
    # The option that has to round a layer; "": none has to.
    option: str = ""

    def name_of(self, layer: str) -> str | None:
        """The name for a layer of the checkpoint; None: it stays as it is."""
        if any(pattern.match(layer) for pattern in self.ignore):
            return None
        if self.targets and not any(pattern.match(layer) for pattern in self.targets):
            return None
        return self.moe if ".experts." in layer else self.linear


def in_flight(quantization: str | None, settings: Json | None, stored: object = None) -> InFlight:
    """Read the two options together; raises UsageError for settings of no meaning.

    `stored` is the checkpoint's own method: a mixture of mxfp4's experts keeps them so.
    """
    if quantization in EXPERTS:
        if settings:
            raise UsageError(f"{_FLAG} and --quantization {quantization} are one thing; give one")
        return InFlight(None, EXPERTS[quantization], option=f"--quantization {quantization}")
    if not settings:
        is_kept = stored == "mxfp4" and quantization in (None, "mxfp4", "gpt_oss_mxfp4")
        return InFlight(None, "mxfp4") if is_kept else InFlight(quantization, quantization)
    unknown = [name for name in settings if name not in ("linear", "moe", "ignore", "targets")]
    if unknown:
        raise UsageError(f"{_FLAG}.{unknown[0]} is not known; use linear, moe, ignore or targets")
    names = {part: settings.get(part, quantization) for part in ("linear", "moe")}
    for part, name in names.items():
        if name is not None and name not in IN_FLIGHT:
            raise UsageError(f"{_FLAG}.{part} {name!r} has to be one of {', '.join(IN_FLIGHT)}")
    if not any(names.values()):
        raise UsageError(f"{_FLAG} rounds nothing; give linear, moe or --quantization")
    ignore, targets = (_patterns(part, settings.get(part)) for part in ("ignore", "targets"))
    return InFlight(names["linear"], names["moe"], ignore, targets, _FLAG)


def _patterns(part: str, given: Any) -> tuple[re.Pattern[str], ...]:
    """Names of layers or of modules that hold them, or re: and a regular expression."""
    names = names_of(given)
    if names is None:
        raise UsageError(f"{_FLAG}.{part} {given!r} has to be a list of names, or of re:PATTERN")
    try:
        return tuple(re.compile(layers_of(name)) for name in names)
    except re.error as error:
        raise UsageError(f"{_FLAG}.{part} has a pattern that is none: {error}") from None
