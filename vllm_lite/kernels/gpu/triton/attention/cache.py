"""Writes to the paged cache by Triton: one program a token, or a token's head.

A negative slot is skipped. Slots beyond the cache cannot be refused from a kernel: the worker
makes them from the scheduler's block ids.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import next_power_of_2
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.quantize import (
    encode,
    format_of,
    store_scaled_row,
    stored_numbers,
)
from vllm_lite.kernels.reference.cache import are_latents


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


@triton.jit
def write_narrow_rows_kernel(
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
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FORMAT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    row = (head * BLOCK_SIZE + slot % BLOCK_SIZE) * ROW_SIZE
    columns = tl.arange(0, BLOCK_D)
    mask = columns < HEAD_SIZE
    key_from = key_ptr + token * key_token_stride + head * key_head_stride
    key = tl.load(key_from + columns, mask=mask, other=0.0).to(tl.float32)
    key_to = key_cache_ptr + block * key_block_stride + row
    value_from = value_ptr + token * value_token_stride + head * value_head_stride
    value = tl.load(value_from + columns, mask=mask, other=0.0).to(tl.float32)
    value_to = value_cache_ptr + block * value_block_stride + row
    if ROW_SIZE > HEAD_SIZE:
        store_scaled_row(key_to, key, columns, FORMAT, HEAD_SIZE)
        store_scaled_row(value_to, value, columns, FORMAT, HEAD_SIZE)
    else:
        tl.store(key_to + columns, encode(key, FORMAT), mask=mask)
        tl.store(value_to + columns, encode(value, FORMAT), mask=mask)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    if are_latents(key_cache, value_cache):
        value, value_cache = key, key_cache
    elif value.shape != key.shape:
        for rows, cache in ((key, key_cache), (value, value_cache)):
            reshape_and_cache(rows, rows, cache, cache, slot_mapping)
        return
    num_tokens, num_kv_heads, head_size = key.shape
    key_rows, value_rows, _ = stored_numbers(key_cache, value_cache, head_size)
    number_format = format_of(key_cache.dtype)
    strides = (key.stride(0), key.stride(1), value.stride(0), value.stride(1))
    if number_format:
        launch(
            write_narrow_rows_kernel,
            (num_tokens, num_kv_heads),
            key,
            value,
            key_rows,
            value_rows,
            slot_mapping,
            *strides,
            key_cache.stride(0),
            value_cache.stride(0),
            BLOCK_SIZE=key_cache.shape[2],
            HEAD_SIZE=head_size,
            ROW_SIZE=key_cache.shape[3],
            BLOCK_D=next_power_of_2(head_size),
            FORMAT=number_format,
            enable_fp_fusion=False,
        )
        return
    block = min(2048, next_power_of_2(num_kv_heads * head_size))
    launch(
        reshape_and_cache_kernel,
        (num_tokens,),
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        *strides,
        key_cache.stride(0),
        value_cache.stride(0),
        num_kv_heads,
        BLOCK_SIZE=key_cache.shape[2],
        HEAD_SIZE=head_size,
        BLOCK=block,
    )
