"""Tensors of a Hugging Face directory of safetensors files, memory-mapped.

Owns which files are read (the index's, or all where there is none) and the refusal of damaged
ones. Nothing is read before a slot asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_lite.config.json_file import read_json
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.gpu.staging import write_weights
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_rules import Part, WeightRules

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The dtype that a slot reads a named tensor as; None: no slot takes it.
Wanted = Callable[[str], torch.dtype | None]
# Floating-point dtypes convert to each other; the others are read unchanged.
_ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NARROW = {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "F8_E4M3": torch.float8_e4m3fn,
}
# Suffixes of the tensors that make a layer's matrix.
_MATRICES = ("weight", "qweight", "B", "B_24", "W_q", "_weight_qdata")


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor of an open file, or a slice of it."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    path: Path
    file: Any
    stored: str
    # Where it is a slice: its place along the first dimension, which it has no more, or its rows.
    place: int | None = None
    first_row: int = 0

    def slices(self, rules: WeightRules) -> Iterator[SafetensorsTensor]:
        """The tensor as `rules` name it, or its slices."""
        stack = rules.stack_of(self.name)
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
        try:
            return self._read(tuple(slice(0, size) for size in self.shape))
        except (SafetensorError, RuntimeError) as error:
            raise _damaged(self.path, error) from None

    def fill(self, slot: WeightSlot, part: Part) -> None:
        if slot.unpacking is not None:
            write_weights(slot.tensor, part.unpacked(self.read(), slot))
            return
        try:
            stored = self._read(part.region(slot))
        except (SafetensorError, RuntimeError) as error:
            raise _damaged(self.path, error) from None
        # Outside: a failing device is not the file's fault.
        write_weights(slot.tensor, part.values(stored))

    def _read(self, region: tuple[slice | Tensor, ...]) -> Tensor:
        sizes = zip(region, self.shape, strict=False)
        is_whole = all(isinstance(r, slice) and (r.start, r.stop) == (0, size) for r, size in sizes)
        entry = self.file.get_slice(self.stored)
        if is_whole and list(self.shape) == entry.get_shape():
            whole: Tensor = self.file.get_tensor(self.stored)
            return whole
        slices = [
            r if isinstance(r, slice) else slice(0, size)
            for r, size in zip(region, self.shape, strict=False)
        ]
        if self.place is not None:
            slices.insert(0, slice(self.place, self.place + 1))
        elif slices:
            first = slices[0]
            slices[0] = slice(self.first_row + first.start, self.first_row + first.stop)
        part: Tensor = entry[tuple(slices)]
        if self.place is not None:
            part = part[0]
        for dim, chosen in enumerate(region):
            if not isinstance(chosen, slice):
                part = part.index_select(dim, chosen)
        return part


def open_safetensors(directory: Path, wanted: Wanted) -> list[SafetensorsTensor]:
    """The tensors of the checkpoint in `directory`, in file order.

    With an index, only files with a wanted tensor are opened. Raises CheckpointError, also for a
    dtype that cannot be read as the wanted one.
    """
    files = _indexed_files(directory, wanted) or dict.fromkeys(_all_files(directory))
    tensors = []
    for path, names in files.items():
        tensors += _open_file(path, names, wanted)
    return tensors


def plain_layers(directory: Path) -> dict[str, bool]:
    """Whether a layer's weights are floating-point numbers, by the names of all layers."""
    files = _indexed_files(directory, lambda name: torch.float32)
    found = {}
    for path in files or _all_files(directory):
        try:
            file: Any = safe_open(path, framework="pt")
            for name in file.offset_keys():
                layer, _, suffix = name.rpartition(".")
                if suffix in _MATRICES:
                    found[layer] = file.get_slice(name).get_dtype() in _ITEM_SIZES
        except (SafetensorError, OSError) as error:
            raise _damaged(path, error) from None
    return found


def _open_file(path: Path, names: set[str] | None, wanted: Wanted) -> list[SafetensorsTensor]:
    """Tensors of one file; `names` limits it to those that the index places there."""
    try:
        file: Any = safe_open(path, framework="pt")
        found = list(file.offset_keys())
        own = [name for name in found if names is None or name in names]
        return [_describe(path, file, name, wanted(name)) for name in own]
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from None


def _describe(path: Path, file: Any, name: str, wanted: torch.dtype | None) -> SafetensorsTensor:
    entry = file.get_slice(name)
    dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
    if wanted is not None:
        narrow = [stored for stored, number in _NARROW.items() if number is wanted]
        allowed = narrow or list(_ITEM_SIZES)
        if dtype not in allowed:
            raise CheckpointError(
                f"{path}: the tensor {name!r} is stored as {dtype}; supported are "
                f"{', '.join(allowed)}"
            )
    item_size = _NARROW[dtype].itemsize if dtype in _NARROW else _ITEM_SIZES.get(dtype, 0)
    return SafetensorsTensor(name, shape, math.prod(shape) * item_size, path, file, name)


def _indexed_files(directory: Path, wanted: Wanted) -> dict[Path, set[str] | None]:
    """File to the names it holds, for files with a needed tensor; {} where there is no index."""
    index = directory / _INDEX
    if not index.is_file():
        return {}
    try:
        weight_map = read_json(index)["weight_map"]
        places = {str(name): str(file) for name, file in weight_map.items()}
    except (KeyError, AttributeError):
        raise CheckpointError(
            f"{index} is not a valid index of safetensors files; fetch it again"
        ) from None
    files: dict[Path, set[str] | None] = {}
    for file in sorted({file for name, file in places.items() if wanted(name) is not None}):
        path = directory / file
        if path.parent != directory or not path.is_file():
            raise CheckpointError(
                f"{index} names the file {file!r}, which {directory} lacks; fetch it"
            )
        files[path] = {name for name, place in places.items() if place == file}
    return files


def _all_files(directory: Path) -> list[Path]:
    if (directory / _SINGLE).is_file():
        return [directory / _SINGLE]
    files = sorted(directory.glob("*.safetensors"))
    # Mistral's repositories hold the weights twice, once in a layout of their own.
    files = [file for file in files if not file.name.startswith("consolidated")] or files
    if not files:
        others = sorted(directory.glob("*.bin"))
        hint = f"convert {others[0].name} to safetensors" if others else "fetch its weights"
        raise CheckpointError(f"{directory} holds no .safetensors files; {hint}")
    return files


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CheckpointError(f"{path} cannot be read as safetensors ({reason}); fetch it again")
