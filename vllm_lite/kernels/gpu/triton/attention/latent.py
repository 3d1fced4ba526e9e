"""Paged attention by Triton to latents: all heads share one key, whose first numbers are the value.

A program attends for some heads of some queries of one request, over a split of the request's
keys. A tile of keys is read once, for scores and for the weighted sum.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.attention.splits import (
    find_request,
    first_tile,
    merge,
    num_splits,
    room_for_partials,
    split_keys,
    store_no_partial,
    store_partial,
)
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.quantize import decode, stored_numbers

_LOG2_E = math.log2(math.e)
_HEADS = 16  # of a tile: the fewest rows of a matrix instruction


@triton.jit(do_not_specialize=["num_requests", "num_splits"])
def latent_attention_kernel(
    out_ptr,
    partial_ptr,
    query_ptr,
    cache_ptr,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    scale_log2,
    num_requests,
    query_token_stride,
    query_head_stride,
    block_stride,
    table_stride,
    num_heads,
    num_splits,
    HEADS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    FORMAT: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    tile = tl.program_id(0)
    split = tl.program_id(2)
    request = find_request(query_start_loc_ptr, tile, num_requests, BLOCK_Q)
    start = tl.load(query_start_loc_ptr + request)
    query_len = tl.load(query_start_loc_ptr + request + 1) - start
    first_query = (tile - first_tile(query_start_loc_ptr, request, BLOCK_Q)) * BLOCK_Q
    if first_query >= query_len:
        return
    context = tl.load(seq_lens_ptr + request) - query_len
    end = context + tl.minimum(first_query + BLOCK_Q, query_len)
    begin = 0
    if IS_SPLIT:
        begin, num_keys = split_keys(end, split, num_splits, BLOCK_N)
        if begin >= end:
            rows = tl.arange(0, BLOCK_Q * HEADS)
            queries = first_query + rows // HEADS
            heads = tl.program_id(1) * HEADS + rows % HEADS
            is_row = (queries < query_len) & (heads < num_heads)
            row = (start + queries).to(tl.int64) * num_heads + heads
            store_no_partial(partial_ptr, row, split, num_splits, is_row, VALUE_SIZE)
            return
        end = tl.minimum(end, begin + num_keys)

    rows = tl.arange(0, BLOCK_Q * HEADS)
    queries = first_query + rows // HEADS
    heads = tl.program_id(1) * HEADS + rows % HEADS
    is_row = (queries < query_len) & (heads < num_heads)
    tokens = (start + queries).to(tl.int64)
    # Those of values, and the rest of a key, which is rotated.
    columns = tl.arange(0, BLOCK_D)
    is_column = columns < VALUE_SIZE
    rest = VALUE_SIZE + tl.arange(0, BLOCK_R)
    is_rest = rest < KEY_SIZE
    from_query = query_ptr + tokens[:, None] * query_token_stride
    from_query += heads[:, None] * query_head_stride
    row_mask = is_row[:, None] & is_column[None, :]
    query = tl.load(from_query + columns[None, :], mask=row_mask, other=0.0)
    turned = tl.load(from_query + rest[None, :], mask=is_row[:, None] & is_rest[None, :], other=0.0)
    positions = context + queries

    largest = tl.full([BLOCK_Q * HEADS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q * HEADS], tl.float32)
    acc = tl.zeros([BLOCK_Q * HEADS, BLOCK_D], tl.float32)
    table = block_table_ptr + request.to(tl.int64) * table_stride
    for first_key in range(begin, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        is_key = keys < end
        block = tl.load(table + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        from_cache = cache_ptr + block * block_stride + keys % BLOCK_SIZE * KEY_SIZE
        latent = tl.load(
            from_cache[:, None] + columns[None, :],
            mask=is_key[:, None] & is_column[None, :],
            other=0,
        )
        key = tl.load(
            from_cache[None, :] + rest[:, None], mask=is_key[None, :] & is_rest[:, None], other=0
        )
        if FORMAT > 0:
            latent = decode(latent, FORMAT)
            key = decode(key, FORMAT)
        latent = latent.to(query.dtype)
        scores = tl.dot(turned, key.to(query.dtype), input_precision="ieee")
        scores = tl.dot(query, tl.trans(latent), scores, input_precision="ieee") * scale_log2
        visible = is_row[:, None] & is_key[None, :] & (keys[None, :] <= positions[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen no key yet: any finite number keeps its weights 0, not NaN.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - shift[:, None])
        keep = tl.exp2(largest - shift)
        total = total * keep + tl.sum(weights, axis=1)
        acc = acc * keep[:, None]
        acc += tl.dot(weights.to(query.dtype), latent, input_precision="ieee")
        largest = new_largest

    if IS_SPLIT:
        row = tokens * num_heads + heads
        store_partial(partial_ptr, row, split, num_splits, acc, largest, total, is_row, VALUE_SIZE)
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        place = (tokens * num_heads + heads) * VALUE_SIZE
        tl.store(out_ptr + place[:, None] + columns[None, :], acc, mask=row_mask)


def latent_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    *terms: float | Tensor | None,
) -> Tensor:
    """As `reference.paged_attention` where `are_latents`; `terms` of scores must be none."""
    if any(isinstance(term, Tensor) or term for term in terms):
        raise ValueError("paged_attention to latents on a GPU takes scores as they are")
    num_tokens, num_heads, key_size = query.shape
    value_size, block_size = value_cache.shape[3], key_cache.shape[2]
    if key_cache.shape[3] != key_size:
        raise ValueError(f"latents of {key_cache.shape[3]} numbers do not fit keys of {key_size}")
    cache, _, number_format = stored_numbers(key_cache, key_cache, key_size)
    num_requests, blocks_per_request = block_table.shape
    is_decode = num_tokens == num_requests and not tuning.is_fixed()
    block_q, tiles = (1, num_tokens) if is_decode else (2, num_tokens // 2 + num_requests)
    head_tiles = cdiv(num_heads, _HEADS)
    splits = num_splits(
        tiles * head_tiles, blocks_per_request * block_size, tuning.num_processors(query.device)
    )
    out = query.new_zeros((num_tokens, num_heads, value_size))
    partial = out if splits == 1 else room_for_partials(query, value_size, splits, num_tokens)
    block_d = max(16, next_power_of_2(value_size))
    launch(
        latent_attention_kernel,
        (tiles, head_tiles, splits),
        out,
        partial,
        query,
        cache,
        block_table,
        query_start_loc,
        seq_lens,
        scale * _LOG2_E,
        num_requests,
        *query.stride()[:2],
        key_cache.stride(0),
        block_table.stride(0),
        num_heads,
        splits,
        HEADS=_HEADS,
        BLOCK_Q=block_q,
        # What shared memory holds beside the queries.
        BLOCK_N=32 if is_decode and query.itemsize == 2 else 16,
        BLOCK_SIZE=block_size,
        KEY_SIZE=key_size,
        VALUE_SIZE=value_size,
        BLOCK_D=block_d,
        BLOCK_R=max(16, next_power_of_2(key_size - value_size)),
        FORMAT=number_format,
        IS_SPLIT=splits > 1,
        num_warps=8,
        num_stages=1,
    )
    return out if splits == 1 else merge(out, partial, query_start_loc, splits, block_d)
