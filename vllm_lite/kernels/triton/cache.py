"""Writing keys and values into the paged cache by Triton: one program a token.

A slot below zero is skipped. Slots beyond the cache cannot be refused from a kernel: the worker
makes them from a block table whose ids the scheduler planned.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def reshape_and_cache_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_block_stride,
    value_block_stride,
    num_kv_heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    size = num_kv_heads * HEAD_SIZE
    for start in range(0, size, BLOCK):
        elements = start + tl.arange(0, BLOCK)
        mask = elements < size
        head = elements // HEAD_SIZE
        column = elements % HEAD_SIZE
        to = head * (BLOCK_SIZE * HEAD_SIZE) + offset * HEAD_SIZE + column
        key = tl.load(
            key_ptr + token * key_token_stride + head * key_head_stride + column, mask=mask
        )
        value = tl.load(
            value_ptr + token * value_token_stride + head * value_head_stride + column, mask=mask
        )
        tl.store(key_cache_ptr + block * key_block_stride + to, key, mask=mask)
        tl.store(value_cache_ptr + block * value_block_stride + to, value, mask=mask)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    num_tokens, num_kv_heads, head_size = key.shape
    block = min(2048, triton.next_power_of_2(num_kv_heads * head_size))
    reshape_and_cache_kernel[(num_tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        key_cache.stride(0),
        value_cache.stride(0),
        num_kv_heads,
        BLOCK_SIZE=key_cache.shape[2],
        HEAD_SIZE=head_size,
        BLOCK=block,
    )
