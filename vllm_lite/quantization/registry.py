"""The name of a quantization method to its object."""

from __future__ import annotations

import torch

from vllm_lite.errors import UsageError
from vllm_lite.quantization.gguf import GGUFLinearMethod
from vllm_lite.quantization.method import LinearMethod
from vllm_lite.quantization.online import OnlineLinearMethod
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


def get_linear_method(quantization: str | None, dtype: torch.dtype) -> LinearMethod:
    """The method for `quantization`; None is plain, and so is what is dequantised at load."""
    if quantization in (None, "dequantize"):
        return UnquantizedLinearMethod(dtype)
    if quantization == "gguf":
        return GGUFLinearMethod(dtype)
    if quantization in ("int8", "int4"):
        return OnlineLinearMethod(quantization, dtype)
    raise UsageError(
        f"--quantization {quantization} is not supported; use int8 or int4, or a GGUF checkpoint"
    )
