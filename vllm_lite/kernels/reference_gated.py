"""Gated activations beside silu_and_mul, in plain torch; part of `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gelu_and_mul"]


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up [T, I] of x [T, 2I], whose halves are gate and up (arXiv:1606.08415).

    approximate is "none", by the error function, or "tanh".
    """
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate=approximate) * up
