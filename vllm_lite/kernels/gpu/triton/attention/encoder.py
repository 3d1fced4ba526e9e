"""Operations of encoders by Triton.

Attention goes tile by tile of one request's queries, the rows of the query heads that share a
kv-head side by side, over all its keys with a running softmax (arXiv:2307.08691); so a request's
results depend on no other. A program embeds one token, or sums some columns of one segment.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.attention.splits import choose_tiling, find_request, first_tile
from vllm_lite.kernels.gpu.triton.norm import normed_row, weights_of

_LOG2_E = tl.constexpr(math.log2(math.e))
# Columns of a segment that a program sums.
_SUM_COLUMNS = 128


@triton.jit(do_not_specialize=["num_requests"])
def encoder_attention_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    query_start_loc_ptr,
    alibi_slopes_ptr,
    distance_terms_ptr,
    middle,
    scale_log2,
    soft_cap,
    window,
    num_requests,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    num_heads,
    GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_TERMS: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = find_request(query_start_loc_ptr, tile, num_requests, BLOCK_Q)
    start = tl.load(query_start_loc_ptr + request)
    length = tl.load(query_start_loc_ptr + request + 1) - start
    first_query = (tile - first_tile(query_start_loc_ptr, request, BLOCK_Q)) * BLOCK_Q
    if first_query >= length:
        return

    rows = tl.arange(0, BLOCK_M)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < BLOCK_Q * GROUP) & (queries < length)
    tokens = (start + queries).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)
    is_column = columns < HEAD_SIZE
    is_value_column = columns < VALUE_SIZE
    query_rows = query_ptr + tokens * query_token_stride + heads * query_head_stride
    query = tl.load(
        query_rows[:, None] + columns[None, :],
        mask=is_row[:, None] & is_column[None, :],
        other=0.0,
    )

    # Keys are taken in whole tiles from the request's start.
    begin = 0
    end = length
    if HAS_WINDOW:
        begin = tl.maximum(first_query - window, 0) // BLOCK_N * BLOCK_N
        end = tl.minimum(first_query + BLOCK_Q + window, length)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if HAS_ALIBI:
        slopes = tl.load(alibi_slopes_ptr + heads, mask=is_row, other=0.0) * _LOG2_E
    for first_key in range(begin, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        is_key = keys < length
        key_tokens = (start + keys).to(tl.int64)
        key_rows = key_ptr + key_tokens * key_token_stride + kv_head * key_head_stride
        key = tl.load(
            key_rows[None, :] + columns[:, None],
            mask=is_key[None, :] & is_column[:, None],
            other=0.0,
        )
        scores = tl.dot(query, key, input_precision="ieee") * scale_log2
        if HAS_SOFT_CAP:
            # tanh by exp2, which every target has; soft_cap is in base 2 too.
            bent = tl.exp2(tl.abs(scores) * (-2.0 * _LOG2_E) / soft_cap)
            bent = soft_cap * (1.0 - bent) / (1.0 + bent)
            scores = tl.where(scores < 0, -bent, bent)
        distance = tl.abs(keys[None, :] - queries[:, None])
        if HAS_ALIBI:
            scores -= slopes[:, None] * distance.to(tl.float32)
        visible = is_row[:, None] & is_key[None, :]
        if HAS_TERMS:
            place = (heads * (2 * middle + 1) + middle - queries)[:, None] + keys[None, :]
            scores += tl.load(distance_terms_ptr + place, mask=visible, other=0.0) * _LOG2_E
        if HAS_WINDOW:
            visible = visible & (distance <= window)
        scores = tl.where(visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen no key yet: any finite number keeps its weights 0, not NaN.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - shift[:, None])
        keep = tl.exp2(largest - shift)
        total = total * keep + tl.sum(weights, axis=1)
        value_rows = value_ptr + key_tokens * value_token_stride + kv_head * value_head_stride
        value = tl.load(
            value_rows[:, None] + columns[None, :],
            mask=is_key[:, None] & is_value_column[None, :],
            other=0.0,
        )
        acc = acc * keep[:, None]
        acc += tl.dot(weights.to(query.dtype), value, input_precision="ieee")
        largest = new_largest

    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    place = (tokens * num_heads + heads) * VALUE_SIZE
    out_mask = is_row[:, None] & is_value_column[None, :]
    tl.store(out_ptr + place[:, None] + columns[None, :], acc, mask=out_mask)


@triton.jit
def encoder_embedding_kernel(
    out_ptr,
    ids_ptr,
    positions_ptr,
    words_ptr,
    places_ptr,
    types_ptr,
    weight_ptr,
    bias_ptr,
    num_words,
    size,
    eps,
    HAS_PLACES: tl.constexpr,
    HAS_TYPES: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    id = tl.load(ids_ptr + token)
    word = id
    if HAS_TYPES:
        word = id % num_words
    total = tl.load(words_ptr + word * size + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_TYPES:
        kind = id // num_words
        total += tl.load(types_ptr + kind * size + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_PLACES:
        place = tl.load(positions_ptr + token)
        total += tl.load(places_ptr + place * size + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        weight, bias = weights_of(weight_ptr, bias_ptr, columns, size, HAS_BIAS)
        total = normed_row(total, weight, bias, size, eps, True, HAS_BIAS)
    tl.store(out_ptr + token * size + columns, total, mask=mask)


@triton.jit
def segment_sum_kernel(
    sums_ptr, x_ptr, starts_ptr, sums_stride, x_stride, size, BLOCK: tl.constexpr
):
    segment = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    place = sums_ptr + segment * sums_stride + columns
    total = tl.load(place, mask=mask, other=0.0)
    for row in range(tl.load(starts_ptr + segment), tl.load(starts_ptr + segment + 1)):
        x = x_ptr + tl.cast(row, tl.int64) * x_stride + columns
        total += tl.load(x, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, total, mask=mask)


def encoder_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int = 0,
    logits_soft_cap: float = 0.0,
    *,
    alibi_slopes: Tensor | None = None,
    distance_terms: Tensor | None = None,
) -> Tensor:
    num_tokens, num_heads, head_size = query.shape
    kv_heads, value_size = value.shape[1:]
    num_requests = len(query_start_loc) - 1
    group = num_heads // kv_heads
    tiling = choose_tiling(
        group, max(head_size, value_size), False, max(2, query.itemsize), query.device
    )
    out = query.new_zeros((num_tokens, num_heads, value_size))
    # Enough tiles for any lengths; surplus programs return at once.
    encoder_attention_kernel[(num_tokens // tiling.block_q + num_requests, kv_heads)](
        out,
        query,
        key,
        value,
        query_start_loc,
        out if alibi_slopes is None else alibi_slopes,
        out if distance_terms is None else distance_terms,
        0 if distance_terms is None else distance_terms.shape[1] // 2,
        scale * _LOG2_E.value,
        logits_soft_cap * _LOG2_E.value,
        sliding_window,
        num_requests,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        num_heads,
        GROUP=group,
        HEAD_SIZE=head_size,
        VALUE_SIZE=value_size,
        HAS_WINDOW=sliding_window > 0,
        HAS_SOFT_CAP=logits_soft_cap > 0,
        HAS_ALIBI=alibi_slopes is not None,
        HAS_TERMS=distance_terms is not None,
        **tiling.launch(),
    )
    return out


def encoder_embedding(
    input_ids: Tensor,
    positions: Tensor,
    words: Tensor,
    places: Tensor | None = None,
    types: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    num_words, size = words.shape
    out = words.new_empty((len(input_ids), size))
    optional = (places, types, norm_weight, norm_bias)
    encoder_embedding_kernel[(len(input_ids),)](
        out,
        input_ids,
        positions,
        words,
        *(out if tensor is None else tensor for tensor in optional),
        num_words,
        size,
        eps,
        HAS_PLACES=places is not None,
        HAS_TYPES=types is not None,
        HAS_NORM=norm_weight is not None,
        HAS_BIAS=norm_bias is not None,
        BLOCK=next_power_of_2(size),
    )
    return out


def segment_sum(x: Tensor, query_start_loc: Tensor, sums: Tensor) -> Tensor:
    size = x.shape[1]
    segment_sum_kernel[(len(sums), cdiv(size, _SUM_COLUMNS))](
        sums, x, query_start_loc, sums.stride(0), x.stride(0), size, BLOCK=_SUM_COLUMNS
    )
    return sums
