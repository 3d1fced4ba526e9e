"""Writes to the paged cache by the compiled CPU kernels.

A cache's blocks may lie any distance apart, as in memory that many layers share, and its rows may
be parts of longer ones, as values that are the first numbers of keys are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import DTYPES, check_dense, dtype_number, refuse
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.reference.cache import has_row_scales, value_size_of

_CACHE_DTYPES = {**DTYPES, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3, torch.int8: 4}


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    num_tokens, num_kv_heads, key_size = key.shape
    cache_dtype, is_scaled, value_size = check_caches(
        "reshape_and_cache", key_cache, value_cache, key_size
    )
    num_blocks, cache_heads, block_size, _ = key_cache.shape
    if value.shape != (num_tokens, num_kv_heads, value_size) or cache_heads != num_kv_heads:
        raise refuse("reshape_and_cache", "key, value and caches do not fit together")
    if key.stride(2) != 1 or value.stride(2) != 1:
        raise refuse("reshape_and_cache", "takes dense heads")
    check_dense("reshape_and_cache", slot_mapping, torch.int64, num_tokens)
    dtype = dtype_number("reshape_and_cache", key, value)
    key_strides = cache_strides("reshape_and_cache", key_cache)
    value_strides = cache_strides("reshape_and_cache", value_cache)
    calls.get().reshape_and_cache(
        *(num_tokens, dtype, cache_dtype, slot_mapping),
        *(num_blocks, num_kv_heads, block_size, is_scaled),
        *(key, *key.stride()[:2], key_size, key_cache, *key_strides),
        *(value, *value.stride()[:2], value_size, value_cache, *value_strides),
    )


def check_caches(
    operation: str, key_cache: Tensor, value_cache: Tensor, key_size: int
) -> tuple[int, bool, int]:
    """Return the caches' type number, whether rows end in a scale, and the values' size."""
    dtype = _CACHE_DTYPES.get(key_cache.dtype)
    if dtype is None:
        raise refuse(operation, f"cannot use caches of {key_cache.dtype}")
    try:
        value_size = value_size_of(key_cache, value_cache, key_size)
        return dtype, has_row_scales(key_cache, key_size), value_size
    except ValueError as error:
        raise refuse(operation, f"query, key and caches do not fit together: {error}") from None


def cache_strides(operation: str, cache: Tensor) -> tuple[int, int, int]:
    """Strides between blocks, between heads and between rows, in elements."""
    block, head, row, number = cache.stride()
    if number != 1 < cache.shape[3]:
        raise refuse(operation, "rows of a cache must be dense")
    return block, head, row
