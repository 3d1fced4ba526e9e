"""Operations of encoders by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import (
    check_dense,
    check_floats,
    dtype_number,
    refuse,
    row_stride,
    row_strides,
)
from vllm_lite.kernels.cpu.calls import calls

# More than any request has tokens: all of them are one block, and each may see all.
_UNBOUNDED = 1 << 40


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
    num_tokens, num_heads, size = query.shape
    num_kv_heads, value_size = value.shape[1:]
    if key.shape != (num_tokens, num_kv_heads, size) or len(value) != num_tokens:
        raise refuse("encoder_attention", "query, key and value do not fit together")
    if num_heads % num_kv_heads:
        raise refuse("encoder_attention", f"{num_heads} heads cannot share {num_kv_heads}")
    check_floats("encoder_attention", "alibi_slopes", alibi_slopes, num_heads)
    num_distances = 0 if distance_terms is None else distance_terms.shape[1]
    if distance_terms is not None:
        check_dense("encoder_attention", distance_terms, torch.float32, num_heads, num_distances)
    num_requests = len(query_start_loc) - 1
    check_dense("encoder_attention", query_start_loc, torch.int32, num_requests + 1)
    dtype = dtype_number("encoder_attention", query, key, value)
    of_query, of_key, of_value = (
        row_strides("encoder_attention", rows) for rows in (query, key, value)
    )
    output = query.new_empty((num_tokens, num_heads, value_size))
    calls.get().encoder_attention(
        *(query_start_loc, num_requests, num_tokens),
        *(dtype, dtype, query, *of_query, output, alibi_slopes, None, None),
        # A block's stride, heads' and rows'.
        *(key, of_key[0], of_key[1], of_key[0], size),
        *(value, of_value[0], of_value[1], of_value[0], value_size),
        *(num_heads, num_kv_heads, _UNBOUNDED),
        # Itself, and the window on either side.
        *(sliding_window + 1 if sliding_window else 0, scale, logits_soft_cap, False, False),
        *(sliding_window or _UNBOUNDED, distance_terms, num_distances),
    )
    return output


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
    num_tokens, (num_words, size) = len(input_ids), words.shape
    for ids in (input_ids, positions):
        check_dense("encoder_embedding", ids, torch.int64, num_tokens)
    for table in (words, places, types):
        if table is not None:
            check_dense("encoder_embedding", table, words.dtype, len(table), size)
    dtype = norm_dtype = dtype_number("encoder_embedding", words)
    if norm_weight is not None:
        norm_dtype = dtype_number("encoder_embedding", norm_weight)
        for factors in (norm_weight, norm_bias):
            if factors is not None:
                check_dense("encoder_embedding", factors, norm_weight.dtype, size)
        if norm_dtype not in (dtype, 0):
            raise refuse("encoder_embedding", f"norms must be {words.dtype} or float32")
    out = words.new_empty((num_tokens, size))
    calls.get().encoder_embedding(
        *(num_tokens, dtype, norm_dtype, input_ids, positions, words, places, types),
        *(norm_weight, norm_bias, out, num_words),
        *(0 if places is None else len(places), 1 if types is None else len(types), size, eps),
    )
    return out


def segment_sum(x: Tensor, query_start_loc: Tensor, sums: Tensor) -> Tensor:
    num_segments = len(query_start_loc) - 1
    check_dense("segment_sum", query_start_loc, torch.int32, num_segments + 1)
    if sums.shape != (num_segments, x.shape[1]) or sums.dtype != torch.float32:
        raise refuse("segment_sum", "sums must be float32, a row for each segment")
    calls.get().segment_sum(
        *(num_segments, len(x), dtype_number("segment_sum", x), x, row_stride("segment_sum", x)),
        *(query_start_loc, sums, row_stride("segment_sum", sums), x.shape[1]),
    )
    return sums
