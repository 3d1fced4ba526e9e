"""Rows as numbers of one byte, and products of such numbers, in plain torch; part of `reference`.

A row, or each group of its elements, is codes and one float32 scale that they are multiplied by.
Shapes: T tokens, N inputs, M outputs, G groups of N / G inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The largest finite number of each type of one byte.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
# Groups without a larger number become zeros: the inverse of their scale may overflow.
SMALLEST_ROW = 1e-30
# Outputs, and inputs, that share a scale in checkpoints with scales for blocks of a weight.
SCALE_BLOCK = 128

__all__ = [
    "quantize_by_scale",
    "quantize_rows",
    "scaled_linear",
]


def quantize_rows(x: Tensor, dtype: torch.dtype, group_size: int = 0) -> tuple[Tensor, Tensor]:
    """Codes [T, N] of dtype and scales [T, G] float32 of x [T, N]; group_size 0: a row is a group.

    dtype is int8, float8_e4m3fn or float8_e5m2. A scale is the group's largest magnitude over the
    type's largest number; codes are to nearest even. A group that is not finite reads as NaN.
    """
    largest = torch.tensor(LARGEST[dtype])
    groups = x.float().reshape(len(x), -1, group_size or x.shape[-1])
    highest = groups.abs().amax(-1, keepdim=True)
    usable = (highest > SMALLEST_ROW) & highest.isfinite()
    codes = torch.where(usable, groups * (largest / highest), 0.0)
    codes = codes.round() if dtype is torch.int8 else codes.clamp(-largest, largest)
    return codes.flatten(-2).to(dtype), (highest / largest).squeeze(-1)


def quantize_by_scale(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes [T, N] of dtype for x [T, N], whose scale [1] float32 is known beforehand.

    What is too large becomes the largest number; int8 NaN is some number, a float's stays NaN.
    """
    largest = LARGEST[dtype]
    codes = (x.float() / scale).clamp(-largest, largest)
    return (codes.round() if dtype is torch.int8 else codes).to(dtype)


def scaled_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """The product [T, M] of codes x [T, N] and weight [M, N], both int8 or both an 8-bit float.

    x_scales is [T, G], or [1, 1] for all of x. weight_scales is [M, G], [1, G], or one row for
    each SCALE_BLOCK outputs. Sums of a group are exact in int8 and float32 else; then scales, then
    bias [M], then one rounding.
    """
    num_outputs, num_inputs = weight.shape
    num_groups = weight_scales.shape[1]
    size = num_inputs // num_groups
    shared = outputs_per_scale(num_outputs, weight_scales)
    wide = weight_scales.double().repeat_interleave(shared, dim=0)[:num_outputs]
    total = torch.zeros(len(x), num_outputs, dtype=torch.float64)
    for group in range(num_groups):
        part = slice(group * size, (group + 1) * size)
        product = x[:, part].double() @ weight[:, part].double().T
        total += product * x_scales[:, group, None] * wide[:, group]
    if bias is not None:
        total += bias.double()
    return total.to(out_dtype)


def outputs_per_scale(num_outputs: int, weight_scales: Tensor) -> int:
    """How many of a weight's outputs share a row of its scales; ValueError where none fits."""
    for size in (1, num_outputs, SCALE_BLOCK):
        if len(weight_scales) == -(-num_outputs // size):
            return size
    raise ValueError(f"{len(weight_scales)} rows of scales do not fit {num_outputs} outputs")
