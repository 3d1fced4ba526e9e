"""Named tensors of opened files, of whatever format: the part of them that a slot takes is read.

A format is a TensorFile; it knows no models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.tensors import shown_together
from vllm_lite.loader.weight_rules import Part, WeightRules

# The dtype that a slot reads a named tensor as; None: no slot takes it.
Wanted = Callable[[str], torch.dtype | None]
# Floating-point dtypes, in safetensors' words, convert to each other; others are read unchanged.
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NARROW = {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
# Powers of two are read as their exponents, or as numbers.
_DTYPES = FLOATS | _NARROW | {"F8_E8M0": torch.float8_e8m0fnu}
WORDS = {dtype: word for word, dtype in _DTYPES.items()}


class TensorFile(Protocol):
    """An opened file. Contents are read when they are asked for."""

    @property
    def path(self) -> Path: ...

    def names(self) -> Sequence[str]:
        """All tensors, in file order."""

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype, in safetensors' words, and the shape of a tensor."""

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        """A region of a tensor; raises CheckpointError on damage."""


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """Tensors that are in memory, or mapped into it."""

    path: Path
    tensors: Mapping[str, Tensor]

    def names(self) -> list[str]:
        return list(self.tensors)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        tensor = self.tensors[name]
        word = str(tensor.dtype).removeprefix("torch.")
        return WORDS.get(tensor.dtype, word), tuple(tensor.shape)

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        return self.tensors[name][region]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of an open file, or a slice of it."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    file: TensorFile
    stored: str
    # Where it is a slice: its place along the first dimension, which it has no more, or its rows.
    place: int | None = None
    first_row: int = 0
    # Bytes that a tool stored as signed numbers.
    has_signs: bool = False

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def shown(self) -> str:
        return f"{self.path}: the tensor {self.stored!r}"

    def slices(self, rules: WeightRules) -> Iterator[StoredTensor]:
        """The tensor as `rules` name it, or its slices."""
        stack = rules.stack_of(self.name)
        if stack is not None and math.prod(self.shape) == 1 < stack.num_items:
            for i in range(stack.num_items):
                yield replace(self, name=rules.slice_name(self.name, i))
            return
        if stack is None or not self.shape:
            yield replace(self, name=rules.name_of(self.name))
            return
        count = self.shape[0] if stack.count is None else stack.count
        rows = self.shape[0] // count
        for i in range(count):
            name, nbytes = rules.slice_name(self.name, i), self.nbytes // count
            if stack.count is None:
                shape = self.shape[1:]
                yield replace(self, name=name, shape=shape, nbytes=nbytes, place=i)
            else:
                shape = (rows, *self.shape[1:])
                yield replace(self, name=name, shape=shape, nbytes=nbytes, first_row=i * rows)

    def read(self) -> Tensor:
        """All of it, as it is stored; raises CheckpointError."""
        return self._read(tuple(slice(0, size) for size in self.shape))

    def fill(self, slot: WeightSlot, part: Part) -> None:
        if slot.unpacking is not None:
            part.unpack(self.read(), slot)
            return
        stored = self._read(part.region(slot))
        stored = stored.flatten() if slot.full_shape == (1,) else stored
        if stored.dtype is torch.float8_e8m0fnu:
            is_code = slot.tensor.dtype is torch.uint8
            stored = stored.view(torch.uint8) if is_code else stored.float()
        slot.write(part.values(stored))

    def _read(self, region: tuple[slice | Tensor, ...]) -> Tensor:
        slices = [
            r if isinstance(r, slice) else slice(0, size)
            for r, size in zip(region, self.shape, strict=False)
        ]
        if self.place is not None:
            slices.insert(0, slice(self.place, self.place + 1))
        elif slices:
            first = slices[0]
            slices[0] = slice(self.first_row + first.start, self.first_row + first.stop)
        part = self.file.read(self.stored, tuple(slices))
        if self.place is not None:
            part = part[0]
        for dim, chosen in enumerate(region):
            if not isinstance(chosen, slice):
                part = part.index_select(dim, chosen)
        return part.view(torch.uint8) if self.has_signs else part


class JoinedTensor(Protocol):
    """A tensor that several stored ones make."""

    @property
    def parts(self) -> Sequence[StoredTensor]:
        """The stored ones; the values come first."""

    @property
    def path(self) -> Path:
        return self.parts[0].path

    @property
    def shown(self) -> str:
        return shown_together(self.parts, "with")

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def part_of(stored: Mapping[str, StoredTensor], name: str, owner: StoredTensor) -> StoredTensor:
    """The tensor `name`, without which `owner` cannot be read; raises CheckpointError."""
    if name not in stored:
        raise CheckpointError(
            f"{owner.path} lacks the tensor {name!r}, which belongs to {owner.stored!r}; "
            "fetch it again"
        )
    return stored[name]


def damaged(tensor: StoredTensor | JoinedTensor, wanted: str) -> CheckpointError:
    return CheckpointError(f"{tensor.shown} has to be {wanted}; fetch it again")


def stored_tensor(file: TensorFile, name: str, wanted: torch.dtype | None) -> StoredTensor:
    """The tensor `name` of `file`; raises CheckpointError for one that cannot be read as wanted."""
    dtype, shape = file.entry(name)
    has_signs = dtype == "I8" and wanted is torch.uint8
    if wanted is not None:
        allowed = [word for word, number in _NARROW.items() if number is wanted] or list(FLOATS)
        is_power = dtype == "F8_E8M0" and (wanted is torch.uint8 or wanted in FLOATS.values())
        if dtype not in allowed and not is_power and not has_signs:
            raise CheckpointError(
                f"{file.path}: the tensor {name!r} is stored as {dtype}; supported are "
                f"{', '.join(allowed)}"
            )
    item_size = _DTYPES[dtype].itemsize if dtype in _DTYPES else 0
    return StoredTensor(name, shape, math.prod(shape) * item_size, file, name, has_signs=has_signs)
