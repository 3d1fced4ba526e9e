"""Memory mapped straight from the system, in huge pages where it grants them on request.

Large tables that every step reads belong here: in pages of 4 KiB, translating addresses costs as
much as reading. Untouched pages take no memory. Knows nothing of what is stored.
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
    """[num_bytes] uint8, all zero, from the start of a huge page on; unmapped with its last view.

    Raises OSError or OverflowError where there are not so many addresses.
    """
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # systems that have no such pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + num_bytes]


def release_pages(memory: Tensor) -> int:
    """Give the whole mapping that `memory` of `map_zeros` lies in back to the system; its bytes.

    The addresses stay: what is read is zero, and what is written takes memory anew.
    """
    storage = memory.untyped_storage()
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    address, size = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
    if madvise(address, size, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return storage.nbytes()


class KeptRows:
    """Memory of a result [R, width] float32 that is made anew in every step.

    Kept, because the system would clear as much memory again each time.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._memory = torch.empty(0, width)

    def rows(self, count: int) -> Tensor:
        """[count, width], of any contents, until the next call."""
        if count > len(self._memory):
            # By powers of two: batches grow by one and one.
            capacity = 1 << (count - 1).bit_length()
            mapped = map_zeros(capacity * self._width * 4)
            self._memory = mapped.view(torch.float32).view(capacity, self._width)
        return self._memory[:count]


class MappedPool:
    """Pieces of large mappings for many tensors, none of which need fill a huge page by itself.

    A mapping goes back to the system with the last tensor in it.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 at the start of a cache line, all zero; raises as `map_zeros` does."""
        if num_bytes > _POOL_BYTES // 2:
            return map_zeros(num_bytes)
        if num_bytes > len(self._free):
            self._free = map_zeros(_POOL_BYTES)
        taken = self._free[:num_bytes]
        self._free = self._free[-(-num_bytes // _CACHE_LINE) * _CACHE_LINE :]
        return taken


# For weights as the kernels take them, which live as long as their model.
packed_weights = MappedPool()
