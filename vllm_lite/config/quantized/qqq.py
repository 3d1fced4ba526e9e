"""Settings of QQQ's checkpoints: weights of four bits for activations of eight."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, Settings


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    bits: int = settings.choice("bits", (4,), settings.get("wbits"))
    size = settings.group_size("group_size" if "group_size" in settings.values else "groupsize")
    return Scheme(PackedIntegers("qqq", bits, size, is_symmetric=True, tokens="int8"))
