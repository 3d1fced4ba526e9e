"""Settings of checkpoints of 8-bit floats with scales for tensors or blocks."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import ScaledCodes, Scheme, Settings
from vllm_lite.config.values import Json

_SCALE_BLOCK = [128, 128]


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    block = values.get("weight_block_size")
    settings.one_of("weight_block_size", block, (None, _SCALE_BLOCK))
    schemes = ("dynamic",) if block else ("dynamic", "static")
    scheme = settings.one_of("activation_scheme", values.get("activation_scheme"), schemes)
    return Scheme(ScaledCodes("float8_e4m3fn", "block" if block else "tensor", scheme == "static"))
