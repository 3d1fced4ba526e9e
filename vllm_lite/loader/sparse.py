"""Weights of which a checkpoint holds those that are left, and a bit for each place.

compressed-tensors writes X.compressed, all values that are left row by row, X.bitmask [M, N / 8]
with the first place in the lowest bit, and X.shape. They become a whole X.weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import StoredTensor
from vllm_lite.loader.weight_rules import Part, WeightRules

_VALUES, _NOTES = ".compressed", (".bitmask", ".shape", ".row_offsets")


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """A matrix whose missing values are zero."""

    name: str
    values: StoredTensor
    bitmask: StoredTensor
    shape: tuple[int, ...]

    @property
    def path(self) -> Path:
        return self.values.path

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.bitmask.nbytes

    def slices(self, rules: WeightRules) -> Iterator[SparseTensor]:
        """The matrix as `rules` name it."""
        yield replace(self, name=rules.name_of(self.name))

    def fill(self, slot: WeightSlot, part: Part) -> None:
        whole = self._read()
        narrow = whole.element_size() == 1 or slot.tensor.element_size() == 1
        if narrow and whole.dtype is not slot.tensor.dtype:
            raise self._damaged(f"values of {slot.tensor.dtype}")
        taken = whole
        for dim, chosen in enumerate(part.region(slot)):
            taken = taken[(slice(None),) * dim + (chosen,)]
        slot.write(part.values(taken))

    def _read(self) -> Tensor:
        """All values, of the type that is stored."""
        rows, columns = self.shape
        bits = self.bitmask.read()
        if bits.dtype is not torch.uint8 or bits.shape != (rows, -(-columns // 8)):
            raise self._damaged("a bitmask of a bit for each value")
        is_left = (bits[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1).bool()
        is_left = is_left[:, :columns]
        values = self.values.read().flatten()
        if values.numel() != int(is_left.sum()):
            raise self._damaged("as many values as its bitmask has bits")
        whole = torch.zeros(self.shape, dtype=values.dtype)
        as_bytes = values.element_size() == 1
        target = whole.view(torch.uint8) if as_bytes else whole
        target[is_left] = values.view(torch.uint8) if as_bytes else values
        return whole

    def _damaged(self, wanted: str) -> CheckpointError:
        path, name = self.values.path, self.values.name
        return CheckpointError(f"{path}: {name!r} has to have {wanted}; fetch it again")


def name_of_whole(name: str) -> str:
    """The name of the matrix whose values are stored as `name`."""
    return f"{name.removesuffix(_VALUES)}.weight" if name.endswith(_VALUES) else name


def join_sparse(tensors: Iterable[StoredTensor]) -> Iterator[StoredTensor | SparseTensor]:
    """The tensors, what belongs to a sparse one as one; raises CheckpointError where one lacks."""
    stored = {tensor.name: tensor for tensor in tensors}
    layers = {name.removesuffix(_VALUES) for name in stored if name.endswith(_VALUES)}
    for name, tensor in stored.items():
        layer = name.rpartition(".")[0]
        if layer not in layers or not name.endswith((_VALUES, *_NOTES)):
            yield tensor
        elif name.endswith(_VALUES):
            bitmask, shape = stored.get(f"{layer}.bitmask"), stored.get(f"{layer}.shape")
            if bitmask is None or shape is None or shape.shape != (2,):
                raise CheckpointError(f"{tensor.path}: {name!r} has no bitmask and shape beside it")
            rows, columns = (int(size) for size in shape.read().tolist())
            if rows < 1 or columns < 1 or bitmask.shape != (rows, -(-columns // 8)):
                raise CheckpointError(f"{tensor.path}: {name!r} has a bitmask of another shape")
            yield SparseTensor(f"{layer}.weight", tensor, bitmask, (rows, columns))
