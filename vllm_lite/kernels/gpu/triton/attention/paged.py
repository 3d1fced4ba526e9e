"""Paged attention by Triton: prefill, decode and mixed steps in one kernel.

A program attends for BLOCK_Q consecutive queries of one request and all query heads that share
one kv-head, side by side as the rows of a tile (arXiv:2305.13245), over a split of that
request's keys, with a running softmax (arXiv:2307.08691). If few programs would leave the
device idle, there are several splits and a second kernel merges them (flash decoding).
In steps of several lengths one launch has the prompts' tiles, a second one the requests whose
queries fit decode's tile. In deterministic mode there is one split, and all go through the tiles
of prompts. Tiles of keys are independent of the cache's block size, as each row looks up its
block; where a tile lies within a block it may be read by descriptors (TMA) instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.attention.latent import latent_attention
from vllm_lite.kernels.gpu.triton.attention.splits import (
    Heads,
    Pass,
    find_request,
    first_tile,
    first_visible,
    merge,
    partial_row,
    plan_passes,
    room_for_partials,
    rows_of_tile,
    split_keys,
    store_no_partial,
    store_partial,
    tile_rows,
)
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.quantize import decode, load_scales, stored_numbers
from vllm_lite.kernels.reference.cache import are_latents, value_size_of

_LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _over_keys(
    acc,
    largest,
    total,
    begin,
    end,
    query,
    positions,
    is_row,
    slopes,
    table,
    key_cache_ptr,
    value_cache_ptr,
    key_descriptor,
    value_descriptor,
    key_block_stride,
    value_block_stride,
    kv_head,
    scale_log2,
    soft_cap,
    window,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FORMAT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr,
    IS_EDGE: tl.constexpr,
):
    """Attend to keys from begin to end; unless IS_EDGE all of them are visible, in whole tiles."""
    columns = tl.arange(0, BLOCK_D)
    IS_BENT: tl.constexpr = HAS_SOFT_CAP or HAS_ALIBI or ROW_SIZE > HEAD_SIZE
    for first_key in range(begin, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        is_key = (keys < end) if IS_EDGE else tl.full([BLOCK_N], True, tl.int1)
        # Within a block: kv_head, then offset, then column.
        if BY_DESCRIPTOR:
            # A tile is of one block.
            block = tl.load(table + first_key // BLOCK_SIZE)
            row = kv_head * BLOCK_SIZE + first_key % BLOCK_SIZE
            key = key_descriptor.load([block, row, 0]).reshape(BLOCK_N, HEAD_SIZE).T
        else:
            block = tl.load(table + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
            slot = kv_head * BLOCK_SIZE + keys % BLOCK_SIZE
            inner = slot * ROW_SIZE
            places = block * key_block_stride + inner
            key_ptrs = key_cache_ptr + places[None, :] + columns[:, None]
            if IS_EDGE or HEAD_SIZE < BLOCK_D:
                key_mask = is_key[None, :] & (columns < HEAD_SIZE)[:, None]
                key = tl.load(key_ptrs, mask=key_mask, other=0)
            else:
                key = tl.load(key_ptrs)
        if FORMAT > 0:
            key = decode(key, FORMAT)
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee")
        factor = scale_log2  # of powers too, unless something bends scores
        if IS_BENT:
            scores *= scale_log2
            factor = 1.0
        if ROW_SIZE > HEAD_SIZE:
            key_rows = key_cache_ptr + block * key_block_stride + inner
            scores *= load_scales(key_rows, is_key, HEAD_SIZE)[None, :]
        if HAS_SOFT_CAP:
            # tanh by exp2, which every target has; soft_cap is in base 2 too.
            bent = tl.exp2(tl.abs(scores) * (-2.0 * _LOG2_E) / soft_cap)
            bent = soft_cap * (1.0 - bent) / (1.0 + bent)
            scores = tl.where(scores < 0, -bent, bent)
        if HAS_ALIBI:
            distance = (keys[None, :] - positions[:, None]).to(tl.float32)
            scores += slopes[:, None] * distance
        if IS_EDGE:
            visible = is_row[:, None] & is_key[None, :] & (keys[None, :] <= positions[:, None])
            if HAS_WINDOW == "chunk":
                visible = visible & (keys[None, :] >= positions[:, None] // window * window)
            elif HAS_WINDOW:
                visible = visible & (positions[:, None] - keys[None, :] < window)
            scores = tl.where(visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1) * factor)
        # A row that has seen no key yet: any finite number keeps its weights 0, not NaN.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores * factor - shift[:, None])
        keep = tl.exp2(largest - shift)
        total = total * keep + tl.sum(weights, axis=1)
        if BY_DESCRIPTOR:
            value = value_descriptor.load([block, row, 0]).reshape(BLOCK_N, VALUE_SIZE)
        else:
            places = block * value_block_stride + slot * (ROW_SIZE - HEAD_SIZE + VALUE_SIZE)
            value_ptrs = value_cache_ptr + places[:, None] + columns[None, :]
            if IS_EDGE or VALUE_SIZE < BLOCK_D:
                value_mask = is_key[:, None] & (columns < VALUE_SIZE)[None, :]
                value = tl.load(value_ptrs, mask=value_mask, other=0)
            else:
                value = tl.load(value_ptrs)
        if ROW_SIZE > HEAD_SIZE:
            weights *= load_scales(value_cache_ptr + places, is_key, VALUE_SIZE)[None, :]
        acc = acc * keep[:, None]
        if FORMAT > 0:
            value = decode(value, FORMAT)
        value = value.to(query.dtype)
        acc = tl.dot(weights.to(query.dtype), value, acc, input_precision="ieee")
        largest = new_largest
    return acc, largest, total


@triton.jit(do_not_specialize=["num_requests", "num_splits", "fewest"])
def paged_attention_kernel(
    out_ptr,
    partial_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_descriptor,
    value_descriptor,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    alibi_slopes_ptr,
    sinks_ptr,
    scale_log2,
    soft_cap,
    window,
    num_requests,
    query_token_stride,
    query_head_stride,
    key_block_stride,
    value_block_stride,
    table_stride,
    num_heads,
    num_splits,
    fewest,
    GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FORMAT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr,
    BY_REQUEST: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    # Prompts' last tiles have the most keys, and begin first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if BLOCK_Q > 1 else tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    first_query = 0
    request = tile
    if not BY_REQUEST:
        request = find_request(query_start_loc_ptr, tile, num_requests, BLOCK_Q)
        first_query = (tile - first_tile(query_start_loc_ptr, request, BLOCK_Q)) * BLOCK_Q
    start = tl.load(query_start_loc_ptr + request)
    query_len = tl.load(query_start_loc_ptr + request + 1) - start
    seq_len = tl.load(seq_lens_ptr + request)
    wait_for_inputs(IS_CHAINED)
    is_other = query_len < fewest
    if BY_REQUEST:
        is_other = query_len > BLOCK_Q
    if is_other | (first_query >= query_len):
        if BLOCK_Q == 1 and not BY_REQUEST and not IS_SPLIT:
            # A token of no request gets zeros; of prompts' tokens, `out` was filled before.
            columns = tl.arange(0, BLOCK_D)[None, :]
            group = tl.arange(0, BLOCK_M)[:, None]
            place = (tile.to(tl.int64) * num_heads + kv_head * GROUP + group) * VALUE_SIZE
            tl.store(out_ptr + place + columns, 0.0, mask=(group < GROUP) & (columns < VALUE_SIZE))
        return
    context = seq_len - query_len

    # The keys visible to any of these queries, in whole tiles, and this split's part of them.
    end = context + tl.minimum(first_query + BLOCK_Q, query_len)
    begin = first_visible(context + first_query, window, HAS_WINDOW) // BLOCK_N * BLOCK_N
    if IS_SPLIT:
        first_key, num_keys = split_keys(end - begin, split, num_splits, BLOCK_N)
        begin += first_key
        if begin >= end:
            # With rows of its own: to keep them for the end takes registers.
            queries, heads, is_row = rows_of_tile(
                first_query, query_len, kv_head, GROUP, BLOCK_Q, BLOCK_M
            )
            row = partial_row(request, start, queries, heads, num_heads, BLOCK_Q, BY_REQUEST)
            store_no_partial(partial_ptr, row, split, num_splits, is_row, VALUE_SIZE)
            return
        end = tl.minimum(end, begin + num_keys)

    queries, heads, is_row = rows_of_tile(first_query, query_len, kv_head, GROUP, BLOCK_Q, BLOCK_M)
    tokens = (start + queries).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)
    is_column = columns < HEAD_SIZE
    query_mask = is_row[:, None] & is_column[None, :]
    query = tl.load(
        query_ptr
        + tokens[:, None] * query_token_stride
        + heads[:, None] * query_head_stride
        + columns[None, :],
        mask=query_mask,
        other=0.0,
    )
    positions = context + queries

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if HAS_SINKS:
        # A sink is a key without a value that all queries see; the first split has it.
        is_sunk = is_row & (queries * 0 + split == 0)
        sinks = tl.load(sinks_ptr + heads, mask=is_sunk, other=float("-inf"))
        largest = sinks.to(tl.float32) * _LOG2_E
        total = tl.where(largest == float("-inf"), 0.0, 1.0)
    slopes = largest
    if HAS_ALIBI:
        slopes = tl.load(alibi_slopes_ptr + heads, mask=is_row, other=0.0) * _LOG2_E
    table = block_table_ptr + request.to(tl.int64) * table_stride
    # Whole tiles that every query sees come first, without masks; then the others.
    middle = begin
    if not HAS_WINDOW:
        seen = (context + first_query + 1) // BLOCK_N * BLOCK_N
        middle = tl.maximum(begin, tl.minimum(seen, end // BLOCK_N * BLOCK_N))
    for edge in tl.static_range(2):
        acc, largest, total = _over_keys(
            acc,
            largest,
            total,
            middle if edge else begin,
            end if edge else middle,
            query,
            positions,
            is_row,
            slopes,
            table,
            key_cache_ptr,
            value_cache_ptr,
            key_descriptor,
            value_descriptor,
            key_block_stride,
            value_block_stride,
            kv_head,
            scale_log2,
            soft_cap,
            window,
            BLOCK_N,
            BLOCK_SIZE,
            HEAD_SIZE,
            VALUE_SIZE,
            ROW_SIZE,
            BLOCK_D,
            FORMAT,
            HAS_WINDOW,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            BY_DESCRIPTOR=BY_DESCRIPTOR and edge == 0,
            IS_EDGE=edge == 1,
        )

    if IS_SPLIT:
        row = partial_row(request, start, queries, heads, num_heads, BLOCK_Q, BY_REQUEST)
        store_partial(partial_ptr, row, split, num_splits, acc, largest, total, is_row, VALUE_SIZE)
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        place = (tokens * num_heads + heads) * VALUE_SIZE
        out_mask = is_row[:, None] & (columns < VALUE_SIZE)[None, :]
        tl.store(out_ptr + place[:, None] + columns[None, :], acc, mask=out_mask)


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
    is_chunked: bool = False,
) -> Tensor:
    if lse is not None:
        raise ValueError("paged_attention on a GPU takes no lse")
    where = (block_table, query_start_loc, seq_lens)
    if are_latents(key_cache, value_cache):
        told = (query, key_cache, value_cache, *where, scale, sliding_window, logits_soft_cap)
        return latent_attention(*told, alibi_slopes, sinks)
    num_tokens, num_heads, head_size = query.shape
    _, kv_heads, block_size, row_size = key_cache.shape
    *caches, number_format = stored_numbers(key_cache, value_cache, head_size)
    num_requests, blocks = block_table.shape
    item_size = 4 if query.dtype is torch.float32 else min(2, key_cache.itemsize)
    group, value_size = num_heads // kv_heads, value_size_of(key_cache, value_cache, head_size)
    heads = Heads(kv_heads, group, max(head_size, value_size), item_size)
    passes = plan_passes(num_tokens, num_requests, heads, blocks * block_size, query.device)
    # Only a decode step's programs write zeros where a token is of no request.
    new = query.new_empty if passes[0].is_decode else query.new_zeros
    out = new((num_tokens, num_heads, value_size))
    arguments = (
        *where,
        *(out if per_head is None else per_head for per_head in (alibi_slopes, sinks)),
        scale * _LOG2_E.value,
        logits_soft_cap * _LOG2_E.value,
        sliding_window,
        num_requests,
        *query.stride()[:2],
        *(tensor.stride(0) for tensor in (key_cache, value_cache, block_table)),
        num_heads,
    )
    constants = {
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "HEAD_SIZE": head_size,
        "VALUE_SIZE": value_size,
        "ROW_SIZE": row_size,
        "FORMAT": number_format,
        **_terms(sliding_window, is_chunked, logits_soft_cap, alibi_slopes, sinks),
    }
    for one in passes:
        rows = tile_rows(key_cache, value_cache, head_size, sliding_window, one.tiling)
        told = (*caches, *(rows or caches), *arguments)
        settings = constants | one.launch(rows is not None)
        _attend(one, out, query, query_start_loc, told, settings)
    return out


def _attend(
    one: Pass,
    out: Tensor,
    query: Tensor,
    query_start_loc: Tensor,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
) -> None:
    """Run one of a step's passes, and the merge of its splits."""
    partial = out
    if one.splits > 1:
        owners = one.num_owners(query.shape[0])
        partial = room_for_partials(query, out.shape[2], one.splits, owners)
    grid = (one.num_tiles, query.shape[1] // constants["GROUP"], one.splits)
    launch(
        paged_attention_kernel,
        grid,
        *(out, partial, query, *arguments, one.splits, one.fewest),
        **constants,
        **chained(query.device),
    )
    if one.splits > 1:
        block_q = one.tiling.block_q if one.by_request else 0
        merge(out, partial, query_start_loc, one.splits, one.tiling.block_d, block_q)


def _terms(
    window: int, is_chunked: bool, soft_cap: float, slopes: Tensor | None, sinks: Tensor | None
) -> dict[str, bool | str]:
    return {
        "HAS_WINDOW": "chunk" if is_chunked and window > 0 else window > 0,
        "HAS_SOFT_CAP": soft_cap > 0,
        "HAS_ALIBI": slopes is not None,
        "HAS_SINKS": sinks is not None,
    }
