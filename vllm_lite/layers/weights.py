"""Where the tensors of a checkpoint go: the contract between layers and the loader.

A layer with weights lists its slots; the loader fills each once and then lets the layer finish.
Neither side knows the other's names: weight_map.py joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from vllm_lite.kernels.reference.quantized import QuantizedRows


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """This rank's place for one checkpoint tensor.

    `tensor` is written in place (often a view into a fused parameter). `full_shape` is the
    checkpoint tensor's; its part that belongs here begins at `starts`. Where there is `keep`, it
    takes that part of a quantised checkpoint tensor, and `tensor` stays as it is. Outputs run along
    `output_dim` (None: the tensor has none), `outputs_per_item` of them in an entry.
    """

    tensor: Tensor
    full_shape: tuple[int, ...]
    starts: tuple[int, ...]
    keep: Callable[[QuantizedRows], None] | None = None
    output_dim: int | None = 0
    outputs_per_item: int = 1

    @classmethod
    def whole(cls, tensor: Tensor) -> WeightSlot:
        """A tensor that every rank holds complete."""
        return cls(tensor, tuple(tensor.shape), (0,) * tensor.dim())


class NamedSlot(NamedTuple):
    """A slot as its layer names it: `shard` tells fused parts apart ("" where there are none)."""

    shard: str
    suffix: str
    slot: WeightSlot


@runtime_checkable
class WeightedLayer(Protocol):
    """A module that a checkpoint fills."""

    def weight_slots(self) -> Iterator[NamedSlot]:
        """Every tensor that the checkpoint must have for this layer."""
        ...

    def process_weights_after_loading(self) -> None:
        """Called once, when all slots are filled; the layer may be used afterwards."""
        ...
