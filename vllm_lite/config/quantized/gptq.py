"""Settings of GPTQ's checkpoints."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, Settings
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    bits: int = settings.one_of("bits", values.get("bits"), (4, 8))
    stored = values.get("checkpoint_format") or "gptq"
    settings.one_of("checkpoint_format", stored, ("gptq", "gptq_v2"))
    settings.one_of("lm_head", values.get("lm_head", False), (False,))
    # Rules that begin with "-:" are of layers that are left plain.
    others = [rule for rule in values.get("dynamic") or () if not str(rule).startswith("-:")]
    settings.one_of("dynamic", others, ([],))
    return Scheme(PackedIntegers("gptq", bits, settings.group_size(), stored == "gptq"))
