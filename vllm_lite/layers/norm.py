"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.scaled import of_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """Root-mean-square or layer normalisation."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float
    # The checkpoint stores the weight less 1 (Gemma): it is applied in float32, rounded once.
    is_offset: bool = False


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

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """(a kernel's product of the normalised sum, sum), of what add_and_norm takes.

        Where the kernel would round each row to codes, the norm ends in them.
        """
        takes_codes = of_rows(kernel)
        if takes_codes is None:
            normed, total = self.add_and_norm(x, residual)
            return kernel(normed), total
        narrow, number = takes_codes.ops, takes_codes.codes.dtype
        if residual is None:
            rows = narrow.rms_norm_quantized(x, self._weight, self._eps, number)
            return takes_codes.of_codes(*rows, x.dtype), x
        rows = narrow.fused_add_rms_norm_quantized(x, residual, self._weight, self._eps, number)
        return takes_codes.of_codes(*rows, x.dtype), residual

    def norm_heads(self, x: Tensor) -> Tensor:
        """[T, H, D] of any strides, each head normalised by itself, in place."""
        return self._ops.rms_norm(x, self._weight, self._eps, out=x)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", WeightSlot.whole(self._weight))

    def process_weights_after_loading(self) -> None:
        """The weight is used as it is."""


def make_norm(spec: NormSpec, size: int, dtype: torch.dtype) -> RMSNorm:
    """The norm of `size` features that `spec` describes."""
    return RMSNorm(size, spec.eps, dtype)
