"""Collectives of a tensor-parallel group in plain torch, given every rank's input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def all_reduce(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The sum of `parts` [T, N], in float32 in the order of ranks, rounded once to dtype."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(dtype)


def all_gather(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate `parts`, float32 [R, W], along columns in the order of ranks."""
    return torch.cat(list(parts), 1)
