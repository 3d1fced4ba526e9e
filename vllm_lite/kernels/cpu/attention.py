"""The paged cache by the compiled CPU kernels: writes and attention; their meaning: `reference`.

A cache's blocks may lie any distance apart, as in memory that many layers share, and its rows may
be parts of longer ones, as values that are the first numbers of keys are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import DTYPES, check_index, dtype_number, refuse
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.reference.cached_rows import has_row_scales, value_size_of

_CACHE_DTYPES = {**DTYPES, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3, torch.int8: 4}


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    num_tokens, num_kv_heads, key_size = key.shape
    cache_dtype, is_scaled, value_size = _check_caches(
        "reshape_and_cache", key_cache, value_cache, key_size
    )
    num_blocks, cache_heads, block_size, _ = key_cache.shape
    if value.shape != (num_tokens, num_kv_heads, value_size) or cache_heads != num_kv_heads:
        raise refuse("reshape_and_cache", "key, value and caches do not fit together")
    if key.stride(2) != 1 or value.stride(2) != 1:
        raise refuse("reshape_and_cache", "takes dense heads")
    check_index("reshape_and_cache", slot_mapping, torch.int64, num_tokens)
    calls.get().reshape_and_cache(
        key.data_ptr(),
        value.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        slot_mapping.data_ptr(),
        dtype_number("reshape_and_cache", key, value),
        cache_dtype,
        num_tokens,
        key.stride(0),
        key.stride(1),
        key_size,
        value.stride(0),
        value.stride(1),
        value_size,
        num_blocks,
        *_strides("reshape_and_cache", key_cache),
        *_strides("reshape_and_cache", value_cache),
        num_kv_heads,
        block_size,
        is_scaled,
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int = 0,
    logits_soft_cap: float = 0.0,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    num_tokens, num_heads, key_size = query.shape
    num_blocks, num_kv_heads, block_size, _ = key_cache.shape
    num_requests, blocks_per_request = block_table.shape
    cache_dtype, is_scaled, value_size = _check_caches(
        "paged_attention", key_cache, value_cache, key_size
    )
    if num_heads % num_kv_heads or query.stride(2) != 1:
        raise refuse("paged_attention", "query and caches do not fit together")
    check_index("paged_attention", query_start_loc, torch.int32, num_requests + 1)
    check_index("paged_attention", seq_lens, torch.int32, num_requests)
    if block_table.dtype != torch.int32 or block_table.stride(1) != 1 < blocks_per_request:
        raise refuse("paged_attention", "block_table must be int32 with dense rows")
    output = query.new_empty((num_tokens, num_heads, value_size))
    calls.get().paged_attention(
        query.data_ptr(),
        output.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        block_table.data_ptr(),
        query_start_loc.data_ptr(),
        seq_lens.data_ptr(),
        _per_head("alibi_slopes", alibi_slopes, (num_heads,)),
        _per_head("sinks", sinks, (num_heads,)),
        _per_head("lse", lse, (num_tokens, num_heads)),
        dtype_number("paged_attention", query),
        cache_dtype,
        num_tokens,
        num_heads,
        *query.stride()[:2],
        num_blocks,
        num_kv_heads,
        block_size,
        key_size,
        *_strides("paged_attention", key_cache),
        value_size,
        *_strides("paged_attention", value_cache),
        num_requests,
        blocks_per_request,
        block_table.stride(0),
        scale,
        sliding_window,
        logits_soft_cap,
        is_scaled,
    )
    return output


def _per_head(name: str, numbers: Tensor | None, shape: tuple[int, ...]) -> int:
    """The address of dense float32 numbers; 0 where there are none."""
    if numbers is None:
        return 0
    if numbers.dtype != torch.float32 or numbers.shape != shape or not numbers.is_contiguous():
        raise refuse("paged_attention", f"{name} must be dense float32 {list(shape)}")
    return numbers.data_ptr()


def _check_caches(
    operation: str, key_cache: Tensor, value_cache: Tensor, key_size: int
) -> tuple[int, bool, int]:
    """The kernels' number for the caches' type, whether rows end in a scale, and values' size."""
    dtype = _CACHE_DTYPES.get(key_cache.dtype)
    if dtype is None:
        raise refuse(operation, f"cannot use caches of {key_cache.dtype}")
    try:
        value_size = value_size_of(key_cache, value_cache, key_size)
        return dtype, has_row_scales(key_cache, key_size), value_size
    except ValueError as error:
        raise refuse(operation, f"query, key and caches do not fit together: {error}") from None


def _strides(operation: str, cache: Tensor) -> tuple[int, int]:
    """Elements from one block to the next, and from one row to the next."""
    _, num_heads, block_size, size = cache.shape
    row = cache.stride(2) if block_size > 1 else cache.stride(1) if num_heads > 1 else size
    is_even = num_heads == 1 or cache.stride(1) == block_size * row
    if not is_even or row < size or cache.stride(3) != 1 < size:
        raise refuse(operation, "a head's rows in a block of a cache must follow the last's")
    return cache.stride(0), row
