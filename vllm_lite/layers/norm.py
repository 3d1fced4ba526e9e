"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.weights import NamedSlot, WeightSlot


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self._weight = torch.empty(size, dtype=dtype)
        self._eps = eps
        self._ops = ops()

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(normalised sum, sum) of [T, N] tensors, which both may be overwritten.

        Without a residual yet, x itself is the sum.
        """
        if residual is None:
            return self._ops.rms_norm(x, self._weight, self._eps), x
        return self._ops.fused_add_rms_norm(x, residual, self._weight, self._eps)

    def norm_heads(self, x: Tensor) -> Tensor:
        """[T, H, D] of any strides, each head normalised by itself, in place."""
        return self._ops.rms_norm(x, self._weight, self._eps, out=x)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", WeightSlot.whole(self._weight))

    def process_weights_after_loading(self) -> None:
        """The weight is used as it is."""
