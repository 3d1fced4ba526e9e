"""Products of weights in groups of small integers, in plain torch; part of `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.grouped_weight import GroupedWeight, expand

__all__ = ["expand_grouped", "grouped_linear"]


def expand_grouped(weight: GroupedWeight, dtype: torch.dtype) -> Tensor:
    """All values of a weight, [M, N], rounded once to dtype."""
    return expand(weight).to(dtype)


def grouped_linear(
    x: Tensor,
    weight: GroupedWeight,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x [T, N] times the weight [M, N] transposed, plus bias [M]: [T, M].

    The weight's values are rounded to x's type; sums are float32 and rounded once, to out_dtype
    (default: x's own type).
    """
    values = expand_grouped(weight, x.dtype).float()
    wide = None if bias is None else bias.float()
    product = torch.nn.functional.linear(x.float(), values, wide)
    return product.to(x.dtype if out_dtype is None else out_dtype)
