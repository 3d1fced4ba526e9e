"""The name of a quantization method to its object."""

from __future__ import annotations

import torch

from vllm_lite.errors import UsageError
from vllm_lite.kernels.dispatch import is_compiled, is_deterministic, narrow_ops
from vllm_lite.quantization.gguf import GGUFLinearMethod
from vllm_lite.quantization.method import LinearMethod
from vllm_lite.quantization.online import OnlineLinearMethod
from vllm_lite.quantization.scaled import SCALED_NUMBERS, ScaledLinearMethod
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


def get_linear_method(quantization: str | None, dtype: torch.dtype) -> LinearMethod:
    """The method for `quantization`; None is plain, and so is what is dequantised at load."""
    if quantization in (None, "dequantize"):
        return UnquantizedLinearMethod(dtype)
    if is_deterministic() and not is_compiled():
        raise UsageError(
            "--deterministic (VLLM_BATCH_INVARIANT) cannot be kept on a GPU by --quantization "
            f"{quantization}, whose tiles follow from the number of rows; leave one of them out"
        )
    if quantization == "gguf":
        return GGUFLinearMethod(dtype)
    narrow = narrow_ops()
    if quantization in SCALED_NUMBERS and narrow is not None:
        return ScaledLinearMethod(SCALED_NUMBERS[quantization], dtype, narrow)
    if quantization in ("int8", "int4"):
        return OnlineLinearMethod(quantization, dtype)
    if quantization == "fp8":
        raise UsageError("--quantization fp8 multiplies on a GPU alone; use int8 or int4 on a CPU")
    raise UsageError(
        f"--quantization {quantization} is not supported; use int8 or int4, or a GGUF checkpoint"
    )
