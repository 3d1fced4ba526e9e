"""Interface of methods that store a linear layer's weights and multiply by them.

A method makes the tensors that a checkpoint fills, then turns the filled tensors into a kernel,
a function of the activations alone; it may repack, and drop the originals. It knows no model,
no layer names and no ranks, only one rank's sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.kernels.reference.quantized import QuantizedRows

# [T, input_size] -> [T, output_size]
LinearKernel = Callable[[Tensor], Tensor]


# The product of inputs [T, input_size] that are normalised first, and their sum with the residual;
# both may be overwritten.
NormedKernel = Callable[[Tensor, InputNorm], tuple[Tensor, Tensor]]


def normed_kernel(kernel: LinearKernel) -> NormedKernel | None:
    """The kernel fused with RMSNorm in front; None if it cannot be."""
    found: NormedKernel | None = getattr(kernel, "normed", None)
    return found


def as_they_are(x: Tensor) -> Tensor:
    """A LinearKernel in the place of one: return x itself."""
    return x


@dataclass(frozen=True, slots=True)
class Unpacking:
    """How a checkpoint packs a tensor of which a layer takes the values.

    `shape` is the packed shape of a whole tensor of a given shape; `values` unpacks it.
    """

    # None: floating-point numbers of any type.
    dtype: torch.dtype | None
    shape: Callable[[Sequence[int]], tuple[int, ...]]
    values: Callable[[Tensor, Sequence[int]], Tensor]
    # How earlier releases of a tool packed, told by another shape.
    earlier: Unpacking | None = None
    # Writes the values of a whole tensor to one on the host.
    fill: Callable[[Tensor, Tensor], None] | None = None


class RowPacking(Protocol):
    """Takes a weight's rows as they are read, in whatever order, and packs each of them at once."""

    @property
    def largest(self) -> float:
        """The magnitude of the rows taken last; NaN if one of their numbers is."""

    def put(self, first: int, rows: Tensor) -> None:
        """Take rows [n, input_size] of any floating-point type, of outputs from `first` on."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a layer's storage, and its dimensions of inputs and outputs.

    `data` may stay in host memory until the layer is finished on `device`, so that the device
    need not hold intermediate forms. A method that takes quantised rows as they
    are sets `rows`: the loader puts them there by first output, and leaves that part of
    `data` untouched. One that packs rows as they are read sets `packing`, which a layer may use for
    all rows in place of `data`.
    """

    data: Tensor
    output_dim: int | None
    input_dim: int | None
    rows: dict[int, QuantizedRows] | None = None
    device: torch.device | None = None
    outputs_per_item: int = 1
    inputs_per_item: int = 1
    is_one_number: bool = False
    unpacking: Unpacking | None = None
    # `data` holds what counts where a checkpoint lacks the tensor.
    is_optional: bool = False
    packing: RowPacking | None = None

    @classmethod
    def on_host(
        cls,
        data: Tensor,
        output_dim: int | None,
        input_dim: int | None,
        rows: dict[int, QuantizedRows] | None = None,
    ) -> StoredTensor:
        """Storage in host memory for a layer on torch's current default device."""
        return cls(data, output_dim, input_dim, rows, torch.get_default_device())

    def placed(self) -> Tensor:
        """`data` on the finished layer's device."""
        return self.on_device(self.data)

    def on_device(self, tensor: Tensor) -> Tensor:
        """Move `tensor` to the finished layer's device."""
        return tensor if self.device is None else tensor.to(self.device)


class EmbeddingTable(Protocol):
    """An embedding's rows, to which an output head may be tied."""

    def lookup(self, ids: Tensor, first_row: int | None = None) -> Tensor:
        """[T] int64 -> [T, input_size], a new tensor.

        With `first_row`, the id of the table's first row, ids without a row there get zeros.
        """

    def linear_kernel(self, out_dtype: torch.dtype, bias: Tensor | None = None) -> LinearKernel:
        """A linear kernel by all rows, with results of out_dtype."""


class LinearMethod(Protocol):
    """A way to store and multiply; all layers that use it share the object."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by their checkpoint suffix ("weight", ...), without the bias."""

    def create_bias(self, output_size: int) -> Tensor:
        """An unfilled bias, [output_size]."""

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        """Make the kernel of a filled layer, which keeps only the tensors that it needs.

        Results have out_dtype, by default the inputs' type.
        """

    def for_vocabulary(self) -> LinearMethod:
        """The method for the embedding and the output head."""

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        """Make the table of a filled embedding."""
