"""safetensors files, mapped into memory or read whole. Refuses damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from vllm_lite.errors import CheckpointError


class SafetensorsFile:
    """A mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _damage_of(path):
            self._file: Any = safe_open(path, framework="pt")

    def names(self) -> list[str]:
        return list(self._file.offset_keys())

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        with _damage_of(self.path):
            found = self._file.get_slice(name)
            return found.get_dtype(), tuple(found.get_shape())

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        with _damage_of(self.path):
            found = self._file.get_slice(name)
            ends = [(0, size) for size in found.get_shape()]
            if [(part.start, part.stop) for part in region] == ends:
                whole: Tensor = self._file.get_tensor(name)
                return whole
            part: Tensor = found[region]
            return part


class WholeFile(SafetensorsFile):
    """A file that `load` reads at once, when the first of its tensors is asked for."""

    def __init__(self, path: Path, load: Callable[[Path], Mapping[str, Tensor]]) -> None:
        super().__init__(path)
        self._load = load
        self._lock = Lock()
        self._tensors: Mapping[str, Tensor] = {}

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        with self._lock:
            if not self._tensors:
                with _damage_of(self.path):
                    self._tensors = self._load(self.path)
        return self._tensors[name][region]


def read_whole(path: Path) -> WholeFile:
    """The file at `path`, whose bytes are copied to memory."""
    return WholeFile(path, lambda path: load(path.read_bytes()))


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({reason}); fetch it again"
        ) from None
