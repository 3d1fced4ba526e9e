"""Tensors of a Hugging Face directory of safetensors files, memory-mapped.

Owns which files are read (the index's, or all where there is none) and the refusal of damaged
ones. Nothing is read before a slot asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.staging import write_weights
from vllm_lite.layers.weights import WeightSlot

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor of an open file."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    path: Path
    file: Any

    def fill(self, slot: WeightSlot) -> None:
        try:
            part = self.file.get_tensor(self.name) if slot.is_whole else self._part_of(slot)
            write_weights(slot.tensor, part)
        except (SafetensorError, RuntimeError) as error:
            raise _damaged(self.path, error) from None

    def _part_of(self, slot: WeightSlot) -> Tensor:
        bounds = zip(slot.starts, slot.tensor.shape, strict=True)
        region = tuple(slice(start, start + size) for start, size in bounds)
        part: Tensor = self.file.get_slice(self.name)[region]
        return part


def open_safetensors(directory: Path, needed: Iterable[str]) -> list[SafetensorsTensor]:
    """The tensors of the checkpoint in `directory`, in file order.

    With an index, only files that hold a tensor of `needed` are opened. Raises CheckpointError.
    """
    files = _indexed_files(directory, set(needed)) or dict.fromkeys(_all_files(directory))
    tensors = []
    for path, names in files.items():
        tensors += _open_file(path, names)
    return tensors


def _open_file(path: Path, names: set[str] | None) -> list[SafetensorsTensor]:
    """Tensors of one file; `names` limits it to those that the index places there."""
    try:
        file: Any = safe_open(path, framework="pt")
        found = list(file.offset_keys())
        return [_describe(path, file, name) for name in found if names is None or name in names]
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from None


def _describe(path: Path, file: Any, name: str) -> SafetensorsTensor:
    entry = file.get_slice(name)
    dtype = entry.get_dtype()
    shape = tuple(entry.get_shape())
    if dtype not in _ITEM_SIZES:
        raise CheckpointError(
            f"{path}: the tensor {name!r} is stored as {dtype}; supported are "
            f"{', '.join(_ITEM_SIZES)}"
        )
    count = 1
    for size in shape:
        count *= size
    return SafetensorsTensor(name, shape, count * _ITEM_SIZES[dtype], path, file)


def _indexed_files(directory: Path, needed: set[str]) -> dict[Path, set[str] | None]:
    """File to the names it holds, for files with a needed tensor; {} where there is no index."""
    index = directory / _INDEX
    if not index.is_file():
        return {}
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        places = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{index} is not a valid index of safetensors files; fetch it again"
        ) from None
    files: dict[Path, set[str] | None] = {}
    for file in sorted({places[name] for name in needed if name in places}):
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
