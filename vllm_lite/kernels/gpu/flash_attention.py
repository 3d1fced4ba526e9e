"""Paged attention by the flash-attn package (--attention-backend FLASH_ATTN).

Its kernels read the cache in place, through views with slots before heads: a block holds a
multiple of 256 tokens. Nothing here waits for the device, so CUDA graphs can capture it.
"""

from __future__ import annotations

from typing import Any

from flash_attn import flash_attn_varlen_func
from torch import Tensor
from torch.nn.functional import pad

from vllm_lite.kernels.metadata import current_metadata


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
    """As `reference.paged_attention`, inside a step's `attention_metadata`."""
    longest_context = block_table.shape[1] * key_cache.shape[2]
    attended: Tensor = flash_attn_varlen_func(
        query,
        key_cache.transpose(1, 2),
        value_cache.transpose(1, 2),
        cu_seqlens_q=query_start_loc,
        cu_seqlens_k=pad(seq_lens.cumsum(0, dtype=seq_lens.dtype), (1, 0)),
        max_seqlen_q=current_metadata().max_query_len,
        max_seqlen_k=longest_context,
        softmax_scale=scale,
        causal=True,
        window_size=(sliding_window - 1, 0) if sliding_window > 0 else (-1, -1),
        softcap=logits_soft_cap,
        block_table=block_table,
    )
    return attended


def operations() -> dict[str, Any]:
    """Replacements for Triton's operations, by name."""
    return {"paged_attention": paged_attention}
