"""Paged attention by csrc/cuda: checks tensors, passes addresses and a stream.

Knows the kernels' limits and how a context is split. Nothing here waits for the device, so lengths
and block ids are not checked: the kernels skip what lies beyond a cache.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

HEAD_SIZES = (64, 80, 96, 128, 256)
# As in csrc/cuda/kernels.h.
SHORTEST_UNIT, MAX_UNITS = 256, 32
_QUERY_DTYPES = {torch.float16: 0, torch.bfloat16: 1}
_CACHE_DTYPES = {**_QUERY_DTYPES, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}
_LOG2_E = math.log2(math.e)
# Thread blocks per processor: all that are resident, and as many to replace them.
_BLOCKS_PER_PROCESSOR = 6
# In a full batch only a context this long is split, so that it does not finish last by far.
_UNCUT_UNITS = 16


class Calls(Protocol):
    """vllm_lite._cuda, or its emulation."""

    def attend(self, *numbers: float) -> str | None:
        """Return an error line, or None."""


def plan_splits(num_programs: int, capacity: int, num_processors: int) -> tuple[int, int]:
    """Return thread blocks for each of `num_programs` contexts of up to `capacity` positions, and
    the fewest units for one. Affects speed alone: results are the same for every plan."""
    longest = min(MAX_UNITS, math.ceil(capacity / SHORTEST_UNIT))
    wanted = math.ceil(_BLOCKS_PER_PROCESSOR * num_processors / max(1, num_programs))
    if wanted > 1:
        return max(1, min(longest, wanted)), 1
    if longest > _UNCUT_UNITS and num_programs <= 2 * _BLOCKS_PER_PROCESSOR * num_processors:
        return 4, _UNCUT_UNITS
    return 1, 1


class PagedOps:
    """`paged_attention` on devices of one type."""

    def __init__(self, calls: Calls, device_type: str = "cuda", num_processors: int = 0) -> None:
        """`num_processors` is the device's; 0 asks each tensor's device."""
        self._calls = calls
        self._device_type = device_type
        self._num_processors = num_processors

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        scale: float,
        sliding_window: int = 0,
        logits_soft_cap: float = 0.0,
    ) -> Tensor:
        """As in `reference`; slow for prefills, since each token reads its context anew."""
        name = "paged_attention"
        num_tokens, num_heads, head_size = query.shape
        num_blocks, num_kv_heads, block_size, _ = key_cache.shape
        num_requests, blocks_per_request = block_table.shape
        dtypes = self._check_caches(name, query, key_cache, value_cache)
        self._check_place(name, query, block_table, query_start_loc, seq_lens)
        if num_heads % num_kv_heads:
            raise _refuse(name, f"{num_heads} query heads do not share {num_kv_heads} kv-heads")
        _check_index(name, query_start_loc, torch.int32, num_requests + 1)
        _check_index(name, seq_lens, torch.int32, num_requests)
        if block_table.dtype != torch.int32 or block_table.stride(1) != 1 < blocks_per_request:
            raise _refuse(name, "block_table must be int32 with dense rows")
        splits, min_units = plan_splits(
            num_tokens * num_kv_heads, blocks_per_request * block_size, self._processors(query)
        )
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        size = num_tokens * num_heads * MAX_UNITS * (head_size + 2) if splits > 1 else 0
        partials = query.new_empty(size, dtype=torch.float32)
        pointers = (query, output, key_cache, value_cache, block_table, query_start_loc, seq_lens)
        failure = self._calls.attend(
            *(tensor.data_ptr() for tensor in (*pointers, partials)),
            query.stride(0),
            query.stride(1),
            key_cache.stride(0),
            value_cache.stride(0),
            block_table.stride(0),
            num_tokens,
            num_requests,
            num_heads,
            num_kv_heads,
            num_blocks,
            block_size,
            blocks_per_request,
            head_size,
            sliding_window,
            splits,
            min_units,
            *dtypes,
            self._stream(query),
            scale * _LOG2_E,
            logits_soft_cap * _LOG2_E,
        )
        if failure:
            raise RuntimeError(f"a CUDA kernel could not be started: {failure}")
        return output

    def _check_caches(
        self, name: str, rows: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> tuple[int, int]:
        """Check types and return the kernels' numbers for those of `rows` and the caches."""
        head_size = rows.shape[2]
        if head_size not in HEAD_SIZES:
            sizes = ", ".join(map(str, HEAD_SIZES))
            raise _refuse(name, f"takes heads of {sizes}, got {head_size}")
        dtype = _QUERY_DTYPES.get(rows.dtype)
        if dtype is None:
            raise _refuse(name, f"takes float16 or bfloat16, got {rows.dtype}")
        if key_cache.shape != value_cache.shape or key_cache.dtype != value_cache.dtype:
            raise _refuse(name, "key and value caches must have one shape and type")
        cached = _CACHE_DTYPES.get(key_cache.dtype)
        if cached is None or (cached in (0, 1) and cached != dtype):
            raise _refuse(name, f"cannot use caches of {key_cache.dtype} with {rows.dtype}")
        if key_cache.shape[3] != head_size:
            raise _refuse(name, f"cached rows of {key_cache.shape[3]} do not hold {head_size}")
        _check_rows(name, rows)
        for cache in (key_cache, value_cache):
            _check_dense_blocks(name, cache)
        self._check_place(name, rows, key_cache, value_cache)
        return dtype, cached

    def _check_place(self, name: str, *tensors: Tensor) -> None:
        device = tensors[0].device
        if device.type != self._device_type or any(t.device != device for t in tensors):
            raise _refuse(name, f"takes tensors on one {self._device_type} device")

    def _processors(self, tensor: Tensor) -> int:
        if self._num_processors:
            return self._num_processors
        return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)

    def _stream(self, tensor: Tensor) -> int:
        if self._device_type == "cpu":
            return 0
        return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _refuse(name: str, reason: str) -> ValueError:
    return ValueError(f"{name}: {reason}; or use --attention-backend TRITON_ATTN")


def _check_rows(name: str, rows: Tensor) -> None:
    """Check heads [T, heads, D], which are read 16 bytes at a time."""
    aligned = rows.data_ptr() % 16 == 0 and rows.stride(0) % 8 == 0 and rows.stride(1) % 8 == 0
    if rows.stride(2) != 1 or not aligned:
        raise _refuse(name, "takes dense heads that begin at multiples of 16 bytes")


def _check_dense_blocks(name: str, cache: Tensor) -> None:
    block_bytes = cache.stride(0) * cache.element_size()
    if not cache[0].is_contiguous() or cache.data_ptr() % 16 or block_bytes % 16:
        raise _refuse(name, "the blocks of a cache must be dense and begin at multiples of 16")
    if cache[0].numel() * cache.element_size() % 16:
        raise _refuse(name, "the blocks of a cache must be of a multiple of 16 bytes")


def _check_index(name: str, index: Tensor, dtype: torch.dtype, size: int) -> None:
    if index.dtype != dtype or index.shape != (size,) or not index.is_contiguous():
        raise _refuse(name, f"an index must be dense {dtype} with {size} entries")
