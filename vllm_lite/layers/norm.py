"""Normalisations, alone and with the residual addition.

Root-mean-square (Zhang and Sennrich, 2019) and layer normalisation (Ba et al., 2016) in float32.
One ResidualNorm stands between two blocks, composed when the model is built.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel, normed_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """Root-mean-square or layer normalisation."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float
    has_weight: bool = True
    # Weights by head are a tensor each, norms.0, norms.1, ...
    is_stored_by_head: bool = False
    # Added to the weight that is stored.
    weight_offset: float = 0.0
    # Layer normalisation.
    bias: bool = False
    # The weight stays float32 and is applied before rounding (Gemma).
    in_float32: bool = False


class Norm(nn.Module, metaclass=ABCMeta):
    """A normalisation over the last dimension; the base of both kinds."""

    def __init__(
        self, spec: NormSpec, size: int, dtype: torch.dtype, heads: Shard | None = None
    ) -> None:
        super().__init__()
        shape = (size,) if heads is None else (heads.size, size)
        self._weight = torch.ones(shape, dtype=torch.float32 if spec.in_float32 else dtype)
        self._bias = torch.empty(shape, dtype=self._weight.dtype) if spec.bias else None
        self._has_weight, self._offset = spec.has_weight, spec.weight_offset
        self._is_stored_by_head = spec.is_stored_by_head
        self._heads = heads
        self._eps = spec.eps
        self._ops = ops()

    @abstractmethod
    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Normalise [T, N], or the heads of [T, H, D]; `out` may be x itself."""

    @abstractmethod
    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (normalised sum, sum) of [T, N] tensors, both of which may be overwritten.

        Without a residual, x itself is the sum.
        """

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """Return (kernel applied to the normalised sum, sum), for the inputs of add_and_norm."""
        normed, total = self.add_and_norm(x, residual)
        return kernel(normed), total

    def norm_heads(self, x: Tensor) -> Tensor:
        """Normalise each head of [T, H, D], of any strides, in place."""
        return self.forward(x, out=x)

    def weight_slots(self) -> Iterator[NamedSlot]:
        if self._is_stored_by_head and self._heads is not None:
            for head, row in enumerate(self._weight, self._heads.start):
                yield NamedSlot("", f"norms.{head}.weight", WeightSlot.whole(row))
        elif self._has_weight:
            yield NamedSlot("", "weight", self._slot(self._weight))
        if self._bias is not None:
            yield NamedSlot("", "bias", self._slot(self._bias))

    def _slot(self, tensor: Tensor) -> WeightSlot:
        if self._heads is None:
            return WeightSlot.whole(tensor)
        full = (self._heads.full_size, tensor.shape[1])
        return WeightSlot(tensor, full, (self._heads.start, 0))

    def process_weights_after_loading(self) -> None:
        if self._offset:
            self._weight.add_(self._offset)


class RMSNorm(Norm):
    """x / rms(x) * weight."""

    @property
    def weight(self) -> Tensor:
        """[N] of the storage type or float32, filled when weights are loaded."""
        return self._weight

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps, out=out)

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self._ops.rms_norm(x, self._weight, self._eps), x
        return self._ops.fused_add_rms_norm(x, residual, self._weight, self._eps)

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """As the base class; at once if the kernel can do that."""
        normed = normed_kernel(kernel)
        if normed is None or self._weight.dtype is not x.dtype:
            return super().normed_product(x, residual, kernel)
        return normed(x, InputNorm(residual, self._weight, self._eps))


class LayerNorm(Norm):
    """(x - mean(x)) / std(x) * weight + bias."""

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._ops.layer_norm(x, self._weight, self._bias, self._eps, out=out)

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self.forward(x), x
        return self._ops.fused_add_layer_norm(x, residual, self._weight, self._bias, self._eps)


def make_norm(spec: NormSpec, size: int, dtype: torch.dtype, heads: Shard | None = None) -> Norm:
    """Make the norm of `size` features that `spec` describes; with a weight for each of `heads`."""
    return (RMSNorm if spec.kind == "rms" else LayerNorm)(spec, size, dtype, heads)


class ResidualNorm:
    """Adds a block's output to the residual stream and normalises the stream for the next block.

    `after` normalises the block's output, `before` the stream; either may be absent. Both
    inputs may be overwritten.
    """

    def __init__(
        self,
        before: Norm | None,
        after: Norm | None = None,
        scale: float = 1.0,
        stream_scale: float = 1.0,
        *,
        renews_stream: bool = False,
    ) -> None:
        """`scale` multiplies the block's output, after `after`, and stream_scale the stream.

        With renews_stream, the stream goes on from its normalised form.
        """
        self._before = before
        self._after = after
        self._scales = scale, stream_scale
        self.is_plain = scale == stream_scale == 1.0
        self._ops = ops()
        if renews_stream:
            self.add_and_norm = self._renew  # type: ignore[method-assign]
        elif before is not None and after is None and self.is_plain:
            # The norm's fused operation does all of it.
            self.add_and_norm = before.add_and_norm  # type: ignore[method-assign]
            self.normed_product = before.normed_product  # type: ignore[method-assign]

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (next block's input, stream), both [T, N], of a block's output and the stream.

        Without a stream, x begins it and is neither normalised nor scaled.
        """
        if residual is None:
            return (x if self._before is None else self._before.forward(x)), x
        if self._after is not None:
            x = self._after.forward(x, out=x)
        if self._before is not None and self.is_plain:
            return self._before.add_and_norm(x, residual)
        total = self._ops.scaled_add(x, residual, *self._scales, out=residual)
        return (total if self._before is None else self._before.forward(total)), total

    def _renew(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        normed = ResidualNorm.add_and_norm(self, x, residual)[0]
        return normed, normed

    def normed_product(
        self, x: Tensor, residual: Tensor | None, kernel: LinearKernel
    ) -> tuple[Tensor, Tensor]:
        """Return (kernel applied to the next block's input, stream), for inputs of add_and_norm."""
        normed, total = self.add_and_norm(x, residual)
        return kernel(normed), total
