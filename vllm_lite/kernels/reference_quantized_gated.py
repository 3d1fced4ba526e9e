"""Gated activations that end in numbers of one byte, in plain torch; part of `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference import silu_and_mul
from vllm_lite.kernels.reference_gated import gelu_and_mul
from vllm_lite.kernels.reference_quantized import quantize_rows

__all__ = ["gelu_and_mul_quantized", "silu_and_mul_quantized"]


def silu_and_mul_quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """quantize_rows(silu_and_mul(x), dtype), without the activated row in memory."""
    return quantize_rows(silu_and_mul(x), dtype)


def gelu_and_mul_quantized(
    x: Tensor, dtype: torch.dtype, approximate: str = "none"
) -> tuple[Tensor, Tensor]:
    """quantize_rows(gelu_and_mul(x, approximate), dtype), likewise."""
    return quantize_rows(gelu_and_mul(x, approximate), dtype)
