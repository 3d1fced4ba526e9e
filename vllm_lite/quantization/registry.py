"""The name of a quantization method to its object."""

from __future__ import annotations

import torch

from vllm_lite.errors import UsageError
from vllm_lite.quantization.method import LinearMethod
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


def get_linear_method(quantization: str | None, dtype: torch.dtype) -> LinearMethod:
    """The method for `quantization`; None and "gguf" (dequantised as it is loaded) are plain."""
    if quantization in (None, "gguf"):
        return UnquantizedLinearMethod(dtype)
    raise UsageError(
        f"--quantization {quantization} is not supported; serve an unquantized or GGUF checkpoint"
    )
