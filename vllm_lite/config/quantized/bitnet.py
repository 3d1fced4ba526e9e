"""Settings of BitNet's checkpoints."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import Scheme, Settings, Ternary

_MODES, _LINEAR_CLASSES = ("offline", "online"), ("bitlinear", "autobitlinear")


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    settings.choice("use_rms_norm", (False,), False)
    mode = settings.choice("quantization_mode", _MODES, "offline")
    kind = settings.choice("linear_class", _LINEAR_CLASSES, "bitlinear")
    form = Ternary(is_rounded=mode == "online", is_divided=kind == "bitlinear")
    return Scheme(form, patterns=settings.left_plain("modules_to_not_convert"))
