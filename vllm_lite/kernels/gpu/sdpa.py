"""Paged attention by torch's scaled_dot_product_attention, on any device.

A fallback: it gathers each request's keys and values, and so waits for the lengths.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


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
) -> Tensor:
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    bounds = query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        start, end = bounds[r], bounds[r + 1]
        if start == end:
            continue
        blocks = block_table[r, : math.ceil(seq_len / key_cache.shape[2])].long()
        keys = _gather(key_cache, blocks, query, seq_len)
        values = _gather(value_cache, blocks, query, seq_len)
        positions = torch.arange(seq_len, device=query.device)
        distances = positions[seq_len - (end - start) :, None] - positions
        visible = distances >= 0
        if sliding_window > 0:
            visible &= distances < sliding_window
        queries = query[start:end].transpose(0, 1)
        if logits_soft_cap > 0:
            attended = _soft_capped(queries, keys, values, visible, scale, logits_soft_cap)
        else:
            attended = functional.scaled_dot_product_attention(
                queries[None], keys[None], values[None], visible, scale=scale, enable_gqa=True
            )[0]
        output[start:end] = attended.transpose(0, 1)
    return output


def _gather(cache: Tensor, blocks: Tensor, query: Tensor, seq_len: int) -> Tensor:
    """A request's keys or values [K, seq_len, D] in the query's type."""
    _, num_kv_heads, _, row_size = cache.shape
    if row_size != query.shape[2]:
        raise ValueError(f"TORCH_SDPA reads no cached rows of {row_size} for {query.shape[2]}")
    # torch cannot index 8-bit floats.
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
    rows = raw[blocks].transpose(0, 1).reshape(num_kv_heads, -1, row_size)[:, :seq_len]
    return rows.view(cache.dtype).to(query.dtype)


def _soft_capped(
    queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float, soft_cap: float
) -> Tensor:
    """Attention with a soft cap, which torch's kernels lack."""
    group = queries.shape[0] // keys.shape[0]
    keys, values = (rows.float().repeat_interleave(group, 0) for rows in (keys, values))
    scores = soft_cap * torch.tanh(queries.float() @ keys.transpose(1, 2) * (scale / soft_cap))
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return (weights @ values).to(queries.dtype)


def operations() -> dict[str, Any]:
    """Replacements for Triton's operations, by name."""
    return {"paged_attention": paged_attention}
