"""Weights of which a checkpoint holds those that are left, and a bit for each place.

compressed-tensors writes X.compressed, all values that are left row by row, X.bitmask [M, N / 8]
with the first place in the lowest bit, and X.shape. They become a whole X.weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import JoinedTensor, StoredTensor, damaged, part_of
from vllm_lite.loader.weight_rules import Part, WeightRules

_VALUES, _NOTES = ".compressed", (".bitmask", ".shape", ".row_offsets")


@dataclass(frozen=True, slots=True)
class SparseTensor(JoinedTensor):
    """A matrix whose missing values are zero."""

    name: str
    values: StoredTensor
    bitmask: StoredTensor
    shape: tuple[int, ...]

    @property
    def parts(self) -> tuple[StoredTensor, StoredTensor]:
        return self.values, self.bitmask

    def slices(self, rules: WeightRules) -> Iterator[SparseTensor]:
        yield replace(self, name=rules.name_of(self.name))

    def fill(self, slot: WeightSlot, part: Part) -> None:
        whole = self._read()
        narrow = whole.element_size() == 1 or slot.tensor.element_size() == 1
        if narrow and whole.dtype is not slot.tensor.dtype:
            raise damaged(self.values, f"values of {slot.tensor.dtype}")
        taken = whole
        for dim, chosen in enumerate(part.region(slot)):
            taken = taken[(slice(None),) * dim + (chosen,)]
        slot.write(part.values(taken))

    def _read(self) -> Tensor:
        """All values, of the type that is stored."""
        rows, columns = self.shape
        bits = self.bitmask.read()
        if bits.dtype is not torch.uint8 or bits.shape != (rows, -(-columns // 8)):
            raise damaged(self.bitmask, "bytes with a bit for each value")
        is_left = (bits[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1).bool()
        is_left = is_left[:, :columns]
        values = self.values.read().flatten()
        if values.numel() != int(is_left.sum()):
            raise damaged(self, "as many values as bits that are set")
        whole = torch.zeros(self.shape, dtype=values.dtype)
        as_bytes = values.element_size() == 1
        target = whole.view(torch.uint8) if as_bytes else whole
        target[is_left] = values.view(torch.uint8) if as_bytes else values
        return whole


def name_of_whole(name: str) -> str:
    """The name of the matrix whose values are stored as `name`."""
    return f"{name.removesuffix(_VALUES)}.weight" if name.endswith(_VALUES) else name


def join_sparse(tensors: Iterable[StoredTensor]) -> Iterator[StoredTensor | SparseTensor]:
    """The tensors, what belongs to a sparse one as one; raises CheckpointError where one lacks."""
    stored = {tensor.name: tensor for tensor in tensors}
    for name, tensor in stored.items():
        layer = name.rpartition(".")[0]
        if name.endswith(_NOTES):
            part_of(stored, f"{layer}{_VALUES}", tensor)
        elif name.endswith(_VALUES):
            bitmask, shape = (part_of(stored, f"{layer}{note}", tensor) for note in _NOTES[:2])
            sizes = shape.read()
            if sizes.is_floating_point() or sizes.shape != (2,):
                raise damaged(shape, "two integers")
            rows, columns = sizes.tolist()
            if rows < 1 or columns < 1 or bitmask.shape != (rows, -(-columns // 8)):
                raise damaged(bitmask, f"a bit for each value of the shape {shape.stored!r}")
            yield SparseTensor(f"{layer}.weight", tensor, bitmask, (rows, columns))
        else:
            yield tensor
