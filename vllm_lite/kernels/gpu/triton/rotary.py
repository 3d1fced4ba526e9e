"""Rotary embedding by Triton, in place: one program a token, for all its heads."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotate_heads(ptr, token_stride, head_stride, cos, sin, num_heads, HALF, BLOCK, HEADS, IS_NEOX):
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, BLOCK)
    for first_head in range(0, num_heads, HEADS):
        heads = first_head + tl.arange(0, HEADS)
        mask = (heads[:, None] < num_heads) & (pairs[None, :] < HALF)
        rows = ptr + token * token_stride + heads[:, None] * head_stride
        if IS_NEOX:
            first_ptrs = rows + pairs[None, :]
            second_ptrs = first_ptrs + HALF
        else:
            first_ptrs = rows + 2 * pairs[None, :]
            second_ptrs = first_ptrs + 1
        first = tl.load(first_ptrs, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(second_ptrs, mask=mask, other=0.0).to(tl.float32)
        tl.store(first_ptrs, first * cos - second * sin, mask=mask)
        tl.store(second_ptrs, second * cos + first * sin, mask=mask)


@triton.jit
def rotary_kernel(
    positions_ptr,
    query_ptr,
    key_ptr,
    cos_sin_ptr,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    num_heads,
    num_kv_heads,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    position = tl.load(positions_ptr + tl.program_id(0)).to(tl.int64)
    pairs = tl.arange(0, BLOCK)
    row = cos_sin_ptr + position * (2 * HALF)
    cos = tl.load(row + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sin = tl.load(row + HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
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
    rotate_heads(
        key_ptr,
        key_token_stride,
        key_head_stride,
        cos,
        sin,
        num_kv_heads,
        HALF,
        BLOCK,
        HEADS,
        IS_NEOX,
    )


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    num_tokens, num_heads, _ = query.shape
    num_kv_heads = key.shape[1]
    half = cos_sin_cache.shape[1] // 2
    block = triton.next_power_of_2(half)
    rotary_kernel[(num_tokens,)](
        positions,
        query,
        key,
        cos_sin_cache,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        num_heads,
        num_kv_heads,
        HALF=half,
        BLOCK=block,
        HEADS=max(1, min(triton.next_power_of_2(num_heads), 2048 // block)),
        IS_NEOX=is_neox,
    )
