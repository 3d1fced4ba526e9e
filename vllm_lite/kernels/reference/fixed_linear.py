"""The product of a GPU that must not depend on the batch, in plain torch.

Elsewhere a GPU multiplies plain weights by torch's own library, which picks its order of sums by
the number of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    """x [T, N] times weight [M, N] transposed, plus bias [M]: [T, M] in `out_dtype`.

    Sums are float32, and those of a row follow from the row and the weight alone.
    """
    total = x.float() @ weight.float().T
    return (total if bias is None else total + bias.float()).to(out_dtype)
