"""safetensors files, mapped into memory or streamed. Refuses damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_lite.errors import CheckpointError

_MOST_KEPT = 64 << 20


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


class StreamedFile(SafetensorsFile):
    """A file whose tensors `stream` gives one after another, each of them once.

    One that comes before it is asked for is kept, but no more than a few: what is asked for later,
    or again, is mapped.
    """

    def __init__(self, path: Path, stream: Callable[[Path], Iterator[tuple[str, Tensor]]]) -> None:
        super().__init__(path)
        self._lock = Lock()
        self._stream = stream(path)
        self._kept: dict[str, Tensor] = {}
        self._is_past: set[str] = set()

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        with self._lock, _damage_of(self.path):
            while name not in self._is_past:
                found = next(self._stream, None)
                if found is None:
                    break
                self._is_past.add(found[0])
                self._kept[found[0]] = found[1]
                while found[0] != name and sum(x.nbytes for x in self._kept.values()) > _MOST_KEPT:
                    self._kept.pop(next(iter(self._kept)))
            tensor = self._kept.pop(name, None)
        return super().read(name, region) if tensor is None else tensor[region]


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({reason}); fetch it again"
        ) from None
