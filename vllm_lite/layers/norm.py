"""Normalisations, and how they join the residual stream.

Root-mean-square (Zhang and Sennrich, 2019) and layer normalisation (Ba et al., 2016) in float32.
What reads the stream between two blocks is one ResidualNorm, composed when the model is built.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
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
    # Of layer normalisation.
    bias: bool = False
    # The weight stays float32 and is applied before the one rounding (Gemma).
    in_float32: bool = False


class Norm(nn.Module, metaclass=ABCMeta):
    """A normalisation over the last dimension; both kinds share how they meet other operations."""

    def __init__(self, spec: NormSpec, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._weight = torch.empty(size, dtype=torch.float32 if spec.in_float32 else dtype)
        self._bias = torch.empty(size, dtype=dtype) if spec.bias else None
        self._eps = spec.eps
        self._ops = ops()

    @abstractmethod
    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """[T, N], or [T, H, D] whose heads are rows, normalised; `out` may be x itself."""

    @abstractmethod
    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(normalised sum, sum) of [T, N] tensors, which both may be overwritten.

        Without a residual yet, x itself is the sum.
        """

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """(a kernel's product of the normalised sum, sum), of what add_and_norm takes."""
        normed, total = self.add_and_norm(x, residual)
        return kernel(normed), total

    def norm_heads(self, x: Tensor) -> Tensor:
        """[T, H, D] of any strides, each head normalised by itself, in place."""
        return self.forward(x, out=x)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", WeightSlot.whole(self._weight))
        if self._bias is not None:
            yield NamedSlot("", "bias", WeightSlot.whole(self._bias))

    def process_weights_after_loading(self) -> None:
        """The weight is used as it is."""


class RMSNorm(Norm):
    """x / rms(x) * weight."""

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps, out=out)

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self._ops.rms_norm(x, self._weight, self._eps), x
        return self._ops.fused_add_rms_norm(x, residual, self._weight, self._eps)

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """As any norm's; where the kernel would round each row to codes, the norm ends in them."""
        takes_codes = of_rows(kernel)
        if takes_codes is None or self._weight.dtype is not x.dtype:
            return super().normed_product(x, residual, kernel)
        narrow, number = takes_codes.ops, takes_codes.codes.dtype
        if residual is None:
            rows = narrow.rms_norm_quantized(x, self._weight, self._eps, number)
            return takes_codes.of_codes(*rows, x.dtype), x
        rows = narrow.fused_add_rms_norm_quantized(x, residual, self._weight, self._eps, number)
        return takes_codes.of_codes(*rows, x.dtype), residual


class LayerNorm(Norm):
    """(x - mean(x)) / std(x) * weight + bias."""

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._ops.layer_norm(x, self._weight, self._bias, self._eps, out=out)

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self.forward(x), x
        return self._ops.fused_add_layer_norm(x, residual, self._weight, self._bias, self._eps)


def make_norm(spec: NormSpec, size: int, dtype: torch.dtype) -> Norm:
    """The norm of `size` features that `spec` describes."""
    return (RMSNorm if spec.kind == "rms" else LayerNorm)(spec, size, dtype)


class ResidualNorm:
    """Adds what a block made to the residual stream, and gives the next block what it reads.

    `after` is applied to what is added, `before` to what is read; either may be absent. Both
    inputs may be overwritten: who reads them again must do so before.
    """

    def __init__(self, before: Norm | None, after: Norm | None = None, scale: float = 1.0) -> None:
        """What is added is multiplied by `scale`, behind `after`."""
        self._before = before
        self._after = after
        self._scale = scale
        self._ops = ops()
        if before is not None and after is None and scale == 1.0:
            # The fused operations of the norm do all of it.
            self.add_and_norm = before.add_and_norm  # type: ignore[method-assign]
            self.normed_product = before.normed_product  # type: ignore[method-assign]

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(what the next block reads, the stream), both [T, N], of a block's output and the stream.

        Without a stream yet, x begins it: it is neither normalised nor scaled.
        """
        if residual is None:
            return (x if self._before is None else self._before.forward(x)), x
        if self._after is not None:
            x = self._after.forward(x, out=x)
        if self._before is not None and self._scale == 1.0:
            return self._before.add_and_norm(x, residual)
        total = self._ops.scaled_add(x, residual, self._scale, 1.0, out=residual)
        return (total if self._before is None else self._before.forward(total)), total

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """(a kernel's product of what is read, the stream), of what add_and_norm takes."""
        normed, total = self.add_and_norm(x, residual)
        return kernel(normed), total
