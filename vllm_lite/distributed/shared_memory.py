"""A tensor-parallel group of processes on one machine: collectives through shared memory.

Sums run in float32 in the order of ranks, so that all ranks have the same bits. The compiled module
does both, whatever computes the rest; their meaning: kernels/reference/collectives.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import dtype_number, row_stride
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.mapped_memory import KeptRows


class SharedMemoryGroup:
    """This process's place in a group; a TensorParallelGroup.

    All ranks must call the same collectives in the same order. One that fails calls `fail`, and the
    others' calls raise RuntimeError.
    """

    def __init__(self, fd: int, rank: int, size: int) -> None:
        """`fd` is shared memory that all ranks inherited."""
        self.rank = rank
        self.size = size
        self._group = _cpu.RankGroup(fd, rank, size)
        # By width.
        self._gathered: dict[int, KeptRows] = {}

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        num_tokens, size = x.shape
        if not x.is_contiguous():
            raise ValueError("all_reduce: takes dense rows")
        out = torch.empty(num_tokens, size, dtype=dtype)
        dtypes = dtype_number("all_reduce", x), dtype_number("all_reduce", out)
        calls.get().all_reduce(num_tokens, self._group.address, *dtypes, x, out, size)
        return out

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        if x.dtype != torch.float32 or row_stride("all_gather", x) != x.shape[1]:
            raise ValueError("all_gather: takes dense float32 rows")
        out = self._gathered.setdefault(width, KeptRows(width)).rows(len(x))
        part = -(-width // self.size)
        self._group.all_gather(x.data_ptr(), out.data_ptr(), len(x), part, width)
        return out

    def fail(self) -> None:
        """Let the others' collectives raise."""
        self._group.fail()

    @property
    def failed_rank(self) -> int | None:
        """The first rank that failed."""
        rank = self._group.failed_rank()
        return None if rank < 0 else rank
