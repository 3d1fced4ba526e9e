"""Slots for a checkpoint's tensors: the contract between layers and the loader.

A layer with weights lists its slots; the loader fills each once and then finishes the layer.
Neither side knows the other's names: weight_map.py joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from vllm_lite.kernels.gpu.staging import write_weights
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.quantization.method import RowPacking, Unpacking


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """This rank's slot for one checkpoint tensor.

    `tensor` is written in place (often a view into a fused parameter). `full_shape` is the
    checkpoint tensor's; this rank's part begins at `starts`. If `keep` is set, it takes that part
    of a quantised checkpoint tensor, and `tensor` stays as it is; so it does if `packing` is set,
    which takes rows from `first_row` on. Outputs run along `output_dim` (None: the tensor has
    none), `outputs_per_item` of them in an entry.
    """

    tensor: Tensor
    full_shape: tuple[int, ...]
    starts: tuple[int, ...]
    keep: Callable[[QuantizedRows], None] | None = None
    output_dim: int | None = 0
    outputs_per_item: int = 1
    unpacking: Unpacking | None = None
    # The tensor holds what counts where a checkpoint has none.
    is_optional: bool = False
    packing: RowPacking | None = None
    first_row: int = 0

    def write(self, values: Tensor) -> None:
        """Fill the slot with `values` on the host, expanded to its shape."""
        if self.packing is None:
            write_weights(self.tensor, values)
        else:
            self.packing.put(self.first_row, values.expand_as(self.tensor))

    def largest(self) -> float:
        """The largest magnitude of what was written last; NaN if one of its numbers is."""
        if self.packing is not None:
            return self.packing.largest
        if not self.tensor.is_floating_point() or not self.tensor.numel():
            return 0.0
        # Narrow floats have no minimum of their own; some have NaN.
        is_narrow = self.tensor.element_size() == 1
        low, high = (self.tensor.float() if is_narrow else self.tensor).aminmax()
        return max(-float(low), float(high))

    @property
    def dtype_in_file(self) -> torch.dtype:
        if self.unpacking is None:
            return self.tensor.dtype
        return self.unpacking.dtype or torch.float32

    @classmethod
    def whole(cls, tensor: Tensor) -> WeightSlot:
        """A slot for a tensor that every rank holds in full."""
        return cls(tensor, tuple(tensor.shape), (0,) * tensor.dim())


class NamedSlot(NamedTuple):
    """A slot and its name in the layer; `shard` is the part of a fused tensor, or ""."""

    shard: str
    suffix: str
    slot: WeightSlot


@runtime_checkable
class WeightedLayer(Protocol):
    """A module that a checkpoint fills; by itself it has no tensors and needs no finish."""

    def weight_slots(self) -> Iterator[NamedSlot]:
        """Slots of all tensors that the checkpoint must have for this layer."""
        yield from ()

    def process_weights_after_loading(self) -> None:
        """Finish the layer; called once, after all slots are filled."""
        return
