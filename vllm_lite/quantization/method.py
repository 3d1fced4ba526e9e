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

from vllm_lite.kernels.reference.quantized import QuantizedRows

# [T, input_size] -> [T, output_size]
LinearKernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a layer's storage, and the dimensions that features run along.

    `data` may wait in the host's memory until the layer is finished on `device`: a device need
    not hold what is only on the way to another form. A method that takes quantised rows as they
    are has `rows`: the loader puts them there under their first output, and leaves that part of
    `data` untouched.
    """

    data: Tensor
    output_dim: int | None
    input_dim: int | None
    rows: dict[int, QuantizedRows] | None = None
    device: torch.device | None = None
    outputs_per_item: int = 1
    inputs_per_item: int = 1
    is_one_number: bool = False

    @classmethod
    def on_host(
        cls,
        data: Tensor,
        output_dim: int | None,
        input_dim: int | None,
        rows: dict[int, QuantizedRows] | None = None,
    ) -> StoredTensor:
        """Storage in the host's memory for a layer of the device that is torch's default now."""
        return cls(data, output_dim, input_dim, rows, torch.get_default_device())

    def on_device(self, tensor: Tensor) -> Tensor:
        """`tensor`, moved to where the finished layer lies."""
        return tensor if self.device is None else tensor.to(self.device)


class EmbeddingTable(Protocol):
    """Rows that are looked up by id, and that an output head may be tied to."""

    def lookup(self, ids: Tensor, first_row: int | None = None) -> Tensor:
        """[T] int64 -> [T, input_size], a new tensor.

        With `first_row`, the id of the table's first row, ids without a row there get zeros.
        """
        ...

    def linear_kernel(self, out_dtype: torch.dtype) -> LinearKernel:
        """The product by all rows, with results of out_dtype."""
        ...


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
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        """The kernel of a filled layer. It keeps alive only the tensors that it needs.

        Its results are of out_dtype, by default the type of what it is given.
        """
        ...

    def for_vocabulary(self) -> LinearMethod:
        """The method for the embedding and the output head."""
        ...

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        """The table of a filled embedding."""
        ...
