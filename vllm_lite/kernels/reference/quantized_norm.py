"""Norms that end in numbers of one byte, in plain torch; part of `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference.ops import rms_norm
from vllm_lite.kernels.reference.quantize import quantize_rows

__all__ = ["fused_add_rms_norm_quantized", "rms_norm_quantized"]


def rms_norm_quantized(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """quantize_rows(rms_norm(x, weight, eps), dtype), without the normed row in memory."""
    return quantize_rows(rms_norm(x, weight, eps), dtype)


def fused_add_rms_norm_quantized(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """rms_norm_quantized(x + residual, ...); the sum is written over residual, x stays."""
    residual.add_(x)
    return rms_norm_quantized(residual, weight, eps, dtype)
