"""Settings of QQQ's checkpoints: weights of four bits for activations of eight."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, Settings
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    bits: int = settings.one_of("bits", values.get("bits", values.get("wbits")), (4,))
    size = settings.group_size("group_size" if "group_size" in values else "groupsize")
    return Scheme(PackedIntegers("qqq", bits, size, is_symmetric=True))
