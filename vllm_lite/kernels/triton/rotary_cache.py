"""Rotation and the cache's write in one launch, by Triton.

Of a token one program rotates the query's heads in place, and one program for each kv-head rotates
its key on the way into the cache: the rotated key is never written elsewhere.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.triton.cached_numbers import store_scaled_row, stored_numbers
from vllm_lite.kernels.triton.numbers import encode
from vllm_lite.kernels.triton.rotary import rotate_heads


@triton.jit
def _rotated(
    row_ptr,
    cos_sin_ptr,
    columns,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    """One head, rotated, rounded to its storage type; zeros beyond HEAD_SIZE."""
    if IS_NEOX:
        pair = columns % HALF
        is_first = columns < HALF
        partner = tl.where(is_first, columns + HALF, columns - HALF)
    else:
        pair = columns // 2
        is_first = columns % 2 == 0
        partner = columns ^ 1
    is_rotated = columns < 2 * HALF
    own = tl.load(row_ptr + columns, mask=columns < HEAD_SIZE, other=0.0)
    other = tl.load(row_ptr + partner, mask=is_rotated, other=0.0).to(tl.float32)
    cos = tl.load(cos_sin_ptr + pair, mask=is_rotated, other=1.0)
    sin = tl.load(cos_sin_ptr + HALF + pair, mask=is_rotated, other=0.0)
    turned = own.to(tl.float32) * cos + tl.where(is_first, -other, other) * sin
    return turned.to(own.dtype)


@triton.jit
def _write_row(
    cache_ptr, row, columns, HEAD_SIZE: tl.constexpr, ROW_SIZE: tl.constexpr, FORMAT: tl.constexpr
):
    mask = columns < HEAD_SIZE
    if FORMAT == 0:
        tl.store(cache_ptr + columns, row, mask=mask)
    elif ROW_SIZE > HEAD_SIZE:
        store_scaled_row(cache_ptr, row.to(tl.float32), columns, FORMAT, HEAD_SIZE)
    else:
        tl.store(cache_ptr + columns, encode(row.to(tl.float32), FORMAT), mask=mask)


@triton.jit
def rotary_cache_kernel(
    positions_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    cos_sin_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_block_stride,
    value_block_stride,
    num_heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FORMAT: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64) - 1
    cos_sin_ptr += tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF)
    if head < 0:
        pairs = tl.arange(0, BLOCK)
        cos = tl.load(cos_sin_ptr + pairs, mask=pairs < HALF, other=0.0)[None, :]
        sin = tl.load(cos_sin_ptr + HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
        rotate_heads(
            query_ptr,
            query_token_stride,
            query_head_stride,
            cos,
            sin,
            num_heads,
            HALF,
            BLOCK,
            HEADS,
            IS_NEOX,
        )
        return
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    place = (head * BLOCK_SIZE + slot % BLOCK_SIZE) * ROW_SIZE
    columns = tl.arange(0, BLOCK_D)
    key_row = key_ptr + token * key_token_stride + head * key_head_stride
    key = _rotated(key_row, cos_sin_ptr, columns, HEAD_SIZE, HALF, IS_NEOX)
    key_to = key_cache_ptr + block * key_block_stride + place
    _write_row(key_to, key, columns, HEAD_SIZE, ROW_SIZE, FORMAT)
    value_row = value_ptr + token * value_token_stride + head * value_head_stride
    value = tl.load(value_row + columns, mask=columns < HEAD_SIZE, other=0.0)
    value_to = value_cache_ptr + block * value_block_stride + place
    _write_row(value_to, value, columns, HEAD_SIZE, ROW_SIZE, FORMAT)


def rotary_and_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    is_neox: bool = True,
) -> None:
    num_tokens, num_heads, head_size = query.shape
    half = cos_sin_cache.shape[1] // 2
    block = triton.next_power_of_2(half)
    *caches, number_format = stored_numbers(key_cache, value_cache, head_size)
    rows = (query, key, value)
    rotary_cache_kernel[(num_tokens, 1 + key.shape[1])](
        positions,
        *rows,
        cos_sin_cache,
        *caches,
        slot_mapping,
        *(stride for heads in rows for stride in heads.stride()[:2]),
        key_cache.stride(0),
        value_cache.stride(0),
        num_heads,
        BLOCK_SIZE=key_cache.shape[2],
        HEAD_SIZE=head_size,
        ROW_SIZE=key_cache.shape[3],
        BLOCK_D=triton.next_power_of_2(head_size),
        FORMAT=number_format,
        HALF=half,
        BLOCK=block,
        HEADS=max(1, min(triton.next_power_of_2(num_heads), 2048 // block)),
        IS_NEOX=is_neox,
        # A code's rounding must not be fused into the product before it.
        enable_fp_fusion=number_format == 0,
    )
