"""How a linear layer stores its weights and multiplies by them.

A method makes the tensors that a checkpoint fills, then turns the filled tensors into a kernel,
a function of the activations alone; it may repack, and drop the originals. It knows no model,
no layer names and no ranks: it is told one rank's sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# [T, input_size] -> [T, output_size]
LinearKernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a layer's storage, and the dimensions that features run along."""

    data: Tensor
    output_dim: int | None
    input_dim: int | None


class LinearMethod(Protocol):
    """One way to store and multiply; the object is shared by all layers that use it."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by their checkpoint suffix ("weight", ...), without the bias."""
        ...

    def create_bias(self, output_size: int) -> Tensor:
        """An unfilled bias, [output_size]."""
        ...

    def process_weights_after_loading(
        self,
        weights: Mapping[str, Tensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        """The kernel of a filled layer. It keeps alive only the tensors that it needs.

        Its results are of out_dtype, by default the type of what it is given.
        """
        ...
