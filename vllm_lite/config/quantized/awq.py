"""Settings of AWQ's checkpoints."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, Settings
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    settings.one_of("version", values.get("version", "gemm"), ("gemm", "GEMM"))
    settings.one_of("bits", values.get("bits"), (4,))
    return Scheme(PackedIntegers("awq", 4, settings.group_size()))
