"""Linear layers of heads, in plain torch: each head has a weight of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedHeads:
    """Weights [H, M, N] in the layout of the implementation that packed them."""

    data: Tensor
    dtype: torch.dtype
    num_heads: int  # H
    num_outputs: int  # M
    num_inputs: int  # N


def pack_heads(weights: Tensor) -> PackedHeads:
    """Prepare weights [H, M, N] for `head_linear`; the result holds a copy."""
    copied = weights.clone(memory_format=torch.contiguous_format)
    return PackedHeads(copied, weights.dtype, *weights.shape)


def head_linear(x: Tensor, weights: PackedHeads) -> Tensor:
    """Multiply each head of x [T, H, N + R] by its weight [M, N] transposed: [T, H, M + R].

    The R numbers after a weight's inputs follow its outputs, unchanged. Sums are float32, rounded
    once.
    """
    inputs, rest = x.tensor_split((weights.num_inputs,), dim=2)
    product = torch.einsum("thn,hmn->thm", inputs.float(), weights.data.float())
    return torch.cat([product.to(x.dtype), rest], dim=2)
