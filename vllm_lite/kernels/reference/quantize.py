"""Rounding rows to int8 or fp8 with scales, alone or after another operation, in plain torch.

A row, or each group of its elements, becomes codes and one float32 scale that multiplies them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference.elementwise import act_and_mul
from vllm_lite.kernels.reference.norm import rms_norm

# The largest finite number of each 8-bit type.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
# Groups without a larger number become zeros: the inverse of their scale may overflow.
SMALLEST_ROW = 1e-30


def quantize_rows(x: Tensor, dtype: torch.dtype, group_size: int = 0) -> tuple[Tensor, Tensor]:
    """Quantise x [T, N] to dtype, with scales [T, G] float32; group_size 0: one group a row.

    dtype is int8, float8_e4m3fn or float8_e5m2. A scale is the group's largest magnitude over the
    type's largest number; values round to nearest even. A group that is not finite becomes NaN.
    """
    largest = torch.tensor(LARGEST[dtype])
    groups = torch.unflatten(x.float(), 1, (-1, group_size or x.shape[1]))
    highest = groups.abs().amax(-1, keepdim=True)
    usable = (highest > SMALLEST_ROW) & highest.isfinite()
    codes = torch.where(usable, groups * (largest / highest), 0.0)
    limit = LARGEST[dtype]
    codes = codes.round() if dtype is torch.int8 else codes.clamp(-limit, limit)
    return codes.flatten(-2).to(dtype), (highest / largest).squeeze(-1)


def quantize_by_powers(x: Tensor, dtype: torch.dtype, group_size: int = 0) -> tuple[Tensor, Tensor]:
    """quantize_rows with scales that are powers of two, for an fp8 dtype.

    Each is the least power that keeps the group within the type's range (DeepSeek-V3.1's ue8m0).
    """
    largest = LARGEST[dtype]
    groups = torch.unflatten(x.float(), 1, (-1, group_size or x.shape[1]))
    highest = groups.abs().amax(-1, keepdim=True)
    usable = (highest > SMALLEST_ROW) & highest.isfinite()
    scales = torch.where(usable, power_above(highest / largest), highest)
    codes = torch.where(usable, groups / scales, 0.0).clamp(-largest, largest)
    return codes.flatten(-2).to(dtype), scales.squeeze(-1)


def power_above(x: Tensor) -> Tensor:
    """The least powers of two, of those that are normal numbers, that are not below x >= 0."""
    mantissas, exponents = torch.frexp(x)
    exponents = (exponents - (mantissas == 0.5).int()).clamp(min=-126)
    return torch.where(x.isfinite(), torch.ldexp(torch.ones_like(x), exponents), x)


def quantize_by_scale(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Quantise x [T, N] to dtype by a given scale [1] float32.

    Values out of range are clamped; NaN stays NaN in fp8 and becomes any number in int8.
    """
    largest = LARGEST[dtype]
    codes = (x.float() / scale).clamp(-largest, largest)
    return (codes.round() if dtype is torch.int8 else codes).to(dtype)


def rms_norm_quantized(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return quantize_rows(rms_norm(x, weight, eps), dtype), fused."""
    return quantize_rows(rms_norm(x, weight, eps), dtype)


def fused_add_rms_norm_quantized(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return rms_norm_quantized(x + residual, ...); the sum overwrites residual, x stays."""
    residual.add_(x)
    return rms_norm_quantized(residual, weight, eps, dtype)


def act_and_mul_quantized(x: Tensor, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return quantize_rows(act_and_mul(x, name), dtype), fused."""
    return quantize_rows(act_and_mul(x, name), dtype)
