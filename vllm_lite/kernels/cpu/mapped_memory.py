"""Memory mapped from the system, in huge pages if it grants them.

For large tables that every step reads: with pages of 4 KiB, translating addresses costs as
much as reading. Untouched pages take no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_CACHE_LINE = 64
_POOL_BYTES = 64 << 20


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


class MappedPool:
    """Pieces of large mappings for tensors smaller than a huge page.

    A mapping is unmapped with the last tensor in it.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """Take [num_bytes] zeros, uint8, at the start of a cache line; raises as `map_zeros`."""
        if num_bytes > _POOL_BYTES // 2:
            return map_zeros(num_bytes)
        if num_bytes > len(self._free):
            self._free = map_zeros(_POOL_BYTES)
        taken = self._free[:num_bytes]
        self._free = self._free[-(-num_bytes // _CACHE_LINE) * _CACHE_LINE :]
        return taken


# For packed weights, which live as long as their model.
packed_weights = MappedPool()
