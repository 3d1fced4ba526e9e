"""Attention over the paged cache by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import check_dense, check_floats, dtype_number, refuse
from vllm_lite.kernels.cpu.cache import cache_strides, check_caches
from vllm_lite.kernels.cpu.calls import calls


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
    num_tokens, num_heads, key_size = query.shape
    num_kv_heads = key_cache.shape[1]
    num_requests, blocks_per_request = block_table.shape
    cache_dtype, is_scaled, value_size = check_caches(
        "paged_attention", key_cache, value_cache, key_size
    )
    if num_heads % num_kv_heads or query.stride(2) != 1:
        raise refuse("paged_attention", "query and caches do not fit together")
    check_dense("paged_attention", query_start_loc, torch.int32, num_requests + 1)
    check_dense("paged_attention", seq_lens, torch.int32, num_requests)
    if block_table.dtype != torch.int32 or block_table.stride(1) != 1 < blocks_per_request:
        raise refuse("paged_attention", "block_table must be int32 with dense rows")
    for name, numbers in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        check_floats("paged_attention", name, numbers, num_heads)
    check_floats("paged_attention", "lse", lse, num_tokens, num_heads)
    output = query.new_empty((num_tokens, num_heads, value_size))
    num_blocks, _, block_size, _ = key_cache.shape
    dtype = dtype_number("paged_attention", query)
    calls.get().paged_attention(
        *(block_table, block_table.stride(0), blocks_per_request, query_start_loc, seq_lens),
        *(num_requests, num_tokens, num_blocks),
        *(dtype, cache_dtype, query, *query.stride()[:2], output),
        *(alibi_slopes, sinks, lse),
        *_cached_rows(key_cache, key_size),
        *_cached_rows(value_cache, value_size),
        *(num_heads, num_kv_heads, block_size),
        *(sliding_window, scale, logits_soft_cap, is_scaled, is_chunked),
    )
    return output


def _cached_rows(cache: Tensor, size: int) -> tuple[Tensor, int, int, int, int]:
    return cache, *cache_strides("paged_attention", cache), size
