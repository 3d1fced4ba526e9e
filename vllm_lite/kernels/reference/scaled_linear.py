"""Linear layers by int8 and fp8 weights with scales, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

# Side of a block that shares a scale in checkpoints with block scales.
SCALE_BLOCK = 128


def scaled_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """Return x [T, N] times weight [M, N] transposed, both int8 or both fp8, with scales: [T, M].

    x_scales is [T, G], or [1, 1] for all of x. weight_scales is [M, G], [1, G], or one row for
    each SCALE_BLOCK outputs. A group's sums are exact for int8 and float32 for fp8; then scales,
    bias [M] and one rounding.
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
    """Number of outputs that share a row of scales; ValueError if the shapes do not fit."""
    for size in (1, num_outputs, SCALE_BLOCK):
        if len(weight_scales) == -(-num_outputs // size):
            return size
    raise ValueError(f"{len(weight_scales)} rows of scales do not fit {num_outputs} outputs")
