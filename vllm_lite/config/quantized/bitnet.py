"""Settings of BitNet's checkpoints."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import Scheme, Settings, Ternary
from vllm_lite.config.values import Json

_MODES, _LINEAR_CLASSES = ("offline", "online"), ("bitlinear", "autobitlinear")


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings, get = Settings(path, values), values.get
    settings.one_of("use_rms_norm", get("use_rms_norm", False), (False,))
    mode = settings.one_of("quantization_mode", get("quantization_mode", "offline"), _MODES)
    kind = settings.one_of("linear_class", get("linear_class", "bitlinear"), _LINEAR_CLASSES)
    form = Ternary(is_rounded=mode == "online", is_divided=kind == "bitlinear")
    return Scheme(form, patterns=settings.left_plain("modules_to_not_convert"))
