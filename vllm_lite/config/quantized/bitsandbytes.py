"""Settings of bitsandbytes' checkpoints."""

from __future__ import annotations

from vllm_lite.config.quantized.awq import left_plain
from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, Settings
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    settings.one_of("load_in_8bit", values.get("load_in_8bit"), (True,))
    form = PackedIntegers("llm_int8", 8, None, is_symmetric=True)
    return Scheme(form, patterns=left_plain(settings, "llm_int8_skip_modules"))
