"""Memory mapped from the system, in huge pages if it grants them.

For large tables that every step reads: with pages of 4 KiB, translating addresses costs as
much as reading. Untouched pages take no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_CACHE_LINE = 64
_POOL_BYTES = 64 << 20


# Outside inference mode, since whoever fills the next piece of a pool may not be in it.
@torch.inference_mode(False)
def map_zeros(num_bytes: int) -> Tensor:
    """Map [num_bytes] zeros, uint8, at the start of a huge page; unmapped with its last view.

    Raises OSError or OverflowError if the address space is too small.
    """
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # systems without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + num_bytes]


def empty_on_host(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor, in huge pages if it fills some: the system clears them faster."""
    num_bytes = math.prod(shape) * dtype.itemsize
    with contextlib.suppress(OSError, OverflowError):  # torch says why it gets no memory
        if num_bytes >= HUGE_PAGE:
            return map_zeros(num_bytes).view(dtype).view(*shape)
    return torch.empty(*shape, dtype=dtype, device="cpu")


def release_pages(memory: Tensor) -> int:
    """Return the pages of `memory`'s whole mapping to the system; returns their bytes.

    The addresses stay valid: reads give zeros, writes take memory again.
    """
    storage = memory.untyped_storage()
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    address, size = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
    if madvise(address, size, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return storage.nbytes()


def return_unused_heap() -> None:
    """Return what the allocator keeps of freed memory to the system, where it can."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


class KeptRows:
    """Memory reused for a result [R, width] float32 of every step.

    Otherwise the system would clear new memory each time.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._memory = torch.empty(0, width)

    def rows(self, count: int) -> Tensor:
        """Uninitialised [count, width], valid until the next call."""
        if count > len(self._memory):
            # Powers of two, since batches grow by one.
            capacity = 1 << (count - 1).bit_length()
            mapped = map_zeros(capacity * self._width * 4)
            self._memory = mapped.view(torch.float32).view(capacity, self._width)
        return self._memory[:count]


class Allocations:
    """The pieces that one owner took from a pool, to release and fill again in place."""

    def __init__(self) -> None:
        # By layer, and by their order within it: several layers are filled at a time.
        self.pieces: dict[tuple[int, int], Tensor] = {}

    def release(self) -> int:
        """Return all pages to the system; returns their bytes. The addresses stay valid."""
        wholes = {piece.untyped_storage().data_ptr(): piece for piece in self.pieces.values()}
        return sum(map(release_pages, wholes.values()))


class MappedPool:
    """Pieces of large mappings for tensors smaller than a huge page.

    A mapping is unmapped with the last tensor in it.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()
        self._owner: Allocations | None = None
        self._is_again = False
        # Of each thread: the layer that it fills, and how many pieces that took.
        self._filled = threading.local()

    @torch.inference_mode(False)
    def take(self, num_bytes: int) -> Tensor:
        """Take [num_bytes] uint8 at the start of a cache line; raises as `map_zeros`.

        Memory that is filled again raises RuntimeError for what it was not filled with first.
        """
        with self._lock:
            if self._owner is None:
                return self._take(num_bytes)
            place = self._filled.layer, self._filled.count
            self._filled.count += 1
            if self._is_again:
                piece = self._owner.pieces.get(place)
                if piece is None or len(piece) != num_bytes:
                    raise RuntimeError("what fills the memory again is not what filled it first")
                return piece
            piece = self._owner.pieces[place] = self._take(num_bytes)
            return piece

    @contextlib.contextmanager
    def owned_by(self, owner: Allocations | None) -> Iterator[None]:
        """Within this, `owner` keeps what is taken; what it has already is filled again."""
        self._owner, self._free = owner, self._free[:0]
        self._is_again = owner is not None and bool(owner.pieces)
        try:
            yield
        finally:
            self._owner, self._free = None, self._free[:0]

    def begin_layer(self, number: int) -> None:
        """Take for this layer from now on in this thread."""
        self._filled.layer, self._filled.count = number, 0

    def _take(self, num_bytes: int) -> Tensor:
        if num_bytes > _POOL_BYTES // 2:
            return map_zeros(num_bytes)
        if num_bytes > len(self._free):
            self._free = map_zeros(_POOL_BYTES)
        taken = self._free[:num_bytes]
        self._free = self._free[-(-num_bytes // _CACHE_LINE) * _CACHE_LINE :]
        return taken


# For packed weights, which live as long as their model.
packed_weights = MappedPool()
