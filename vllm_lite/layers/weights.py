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

from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.quantization.method import Unpacking


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """This rank's slot for one checkpoint tensor.

    `tensor` is written in place (often a view into a fused parameter). `full_shape` is the
    checkpoint tensor's; this rank's part begins at `starts`. If `keep` is set, it
    takes that part of a quantised checkpoint tensor, and `tensor` stays as it is. Outputs run along
    `output_dim` (None: the tensor has none), `outputs_per_item` of them in an entry.
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

    @property
    def dtype_in_file(self) -> torch.dtype:
        """The type that a checkpoint's tensor is read as."""
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
    """A module that a checkpoint fills."""

    def weight_slots(self) -> Iterator[NamedSlot]:
        """Slots of all tensors that the checkpoint must have for this layer."""
        ...

    def process_weights_after_loading(self) -> None:
        """Finish the layer; called once, after all slots are filled."""
        ...
