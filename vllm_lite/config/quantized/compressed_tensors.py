"""Settings of compressed-tensors' checkpoints."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.quantized.schemes import ScaledCodes, Scheme, Settings
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    groups = list((values.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise settings.refusal(f"{len(groups)} config_groups", "one of all linear layers")
    settings.one_of("targets", groups[0].get("targets"), (["Linear"],))
    weights = groups[0].get("weights") or {}
    inputs = groups[0].get("input_activations") or {}
    for name, numbers in (("weights", weights), ("input_activations", inputs)):
        settings.one_of(f"{name}.num_bits", numbers.get("num_bits"), (8,))
        settings.one_of(f"{name}.symmetric", numbers.get("symmetric", True), (True,))
    kind = settings.one_of("weights.type", weights.get("type"), ("int", "float"))
    settings.one_of("input_activations.type", inputs.get("type"), (kind,))
    per = settings.one_of("weights.strategy", weights.get("strategy"), ("tensor", "channel"))
    dynamic = bool(inputs.get("dynamic"))
    allowed = ("token",) if dynamic else ("tensor",)
    settings.one_of("input_activations.strategy", inputs.get("strategy"), allowed)
    number: Literal["int8", "float8_e4m3fn"] = "int8" if kind == "int" else "float8_e4m3fn"
    return Scheme(
        ScaledCodes(number, per, not dynamic), has_cache_scales=has_cache_scales(settings)
    )


def has_cache_scales(settings: Settings) -> bool:
    """Whether there are scales for keys and values; raises CheckpointError for other schemes."""
    scheme = settings.values.get("kv_cache_scheme")
    if not scheme:
        return False
    for name, value in (("num_bits", 8), ("type", "float"), ("strategy", "tensor")):
        settings.one_of(f"kv_cache_scheme.{name}", scheme.get(name), (value,))
    settings.one_of("kv_cache_scheme.dynamic", scheme.get("dynamic", False), (False,))
    return True
