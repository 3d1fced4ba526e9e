"""Gated activations that end in codes of one byte, in plain torch; part of `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference.ops import act_and_mul
from vllm_lite.kernels.reference.quantize import quantize_rows

__all__ = ["act_and_mul_quantized"]


def act_and_mul_quantized(x: Tensor, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """quantize_rows(act_and_mul(x, name), dtype), without the activated row in memory."""
    return quantize_rows(act_and_mul(x, name), dtype)
