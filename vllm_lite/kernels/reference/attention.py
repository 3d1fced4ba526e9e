"""Attention over the paged cache, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vllm_lite.kernels.reference.cache import decode, value_size_of


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
    """Causal attention of query [T, H, D] over caches [B, K, S, row]; returns [T, H, D of values].

    Request r owns queries query_start_loc[r] : query_start_loc[r + 1] ([R + 1] int32); they are the
    last of its seq_lens[r] positions ([R] int32). Position j lies in block block_table[r, j // S]
    ([R, M] int32). Key j is visible to the query at position p iff j <= p and, with a window w,
    p - j < w; or if is_chunked, j // w = p // w. A soft cap c maps scores to c * tanh(score / c).
    Tokens of no request become 0. alibi_slopes [H] float32 add slope * (j - p) to a score
    (arXiv:2108.12409); sinks [H] float32 are scores of an extra key without a value that all
    queries see (arXiv:2309.17453).
    lse [T, H] float32 receives the logarithm of the sum of e^score, sinks included; for tokens of
    no request -inf.
    """
    num_heads, head_size = query.shape[1:]
    value_size = value_size_of(key_cache, value_cache, head_size)
    output = query.new_zeros((*query.shape[:2], value_size))
    if lse is not None:
        lse.fill_(-math.inf)
    block_size = key_cache.shape[2]
    bounds = query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        start, end = bounds[r], bounds[r + 1]
        if start == end:
            continue
        blocks = block_table[r, : math.ceil(seq_len / block_size)].long()
        keys = _gather(key_cache, blocks, seq_len, num_heads, head_size)
        values = _gather(value_cache, blocks, seq_len, num_heads, value_size)
        scores = torch.einsum("thd,hjd->htj", query[start:end].float(), keys) * scale
        if logits_soft_cap > 0:
            scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
        position = torch.arange(seq_len - (end - start), seq_len).unsqueeze(1)
        key_position = torch.arange(seq_len).unsqueeze(0)
        visible = _visible(position, key_position, sliding_window, is_chunked)
        if alibi_slopes is not None:
            scores = scores + alibi_slopes[:, None, None] * (key_position - position)
        scores = scores.masked_fill(~visible, -math.inf)
        if sinks is not None:
            sink = sinks.float()[:, None, None].expand(num_heads, end - start, 1)
            scores = torch.cat([scores, sink], dim=-1)
        if lse is not None:
            lse[start:end] = torch.logsumexp(scores, -1).t()
        weights = torch.softmax(scores, dim=-1)[..., :seq_len]
        output[start:end] = torch.einsum("htj,hjd->thd", weights, values).to(query.dtype)
    return output


def _visible(position: Tensor, key: Tensor, window: int, is_chunked: bool) -> Tensor:
    visible = key <= position
    if window > 0:
        visible &= position // window == key // window if is_chunked else position - key < window
    return visible


def _gather(cache: Tensor, blocks: Tensor, seq_len: int, num_heads: int, head_size: int) -> Tensor:
    """A request's keys or values [H, seq_len, D] float32, each kv-head repeated for its group."""
    num_kv_heads = cache.shape[1]
    is_8_bit = cache.dtype.itemsize == 1
    stored = cache.view(torch.uint8)[blocks].view(cache.dtype) if is_8_bit else cache[blocks]
    rows = decode(stored, head_size)
    rows = rows.transpose(0, 1).reshape(num_kv_heads, -1, head_size)
    return rows[:, :seq_len].repeat_interleave(num_heads // num_kv_heads, dim=0)
