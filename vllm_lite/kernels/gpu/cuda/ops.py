"""Paged attention and cache writes on an NVIDIA GPU by the compiled module vllm_lite._cuda.

CUDA kernels serve decode-only steps, since each token reads its context anew; Triton serves all
others.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import vllm_lite._cuda as _cuda
from vllm_lite.kernels.gpu.cuda.paged import PagedOps
from vllm_lite.kernels.gpu.triton import attention as triton_attention

_paged = PagedOps(_cuda)
reshape_and_cache = _paged.reshape_and_cache
copy_blocks = _paged.copy_blocks


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
    **terms: Any,
) -> Tensor:
    is_plain = all(term is None for term in terms.values())
    is_decode = query.shape[0] == block_table.shape[0]
    if not (is_decode and is_plain):
        return triton_attention.paged_attention(
            query,
            key_cache,
            value_cache,
            block_table,
            query_start_loc,
            seq_lens,
            scale,
            sliding_window,
            logits_soft_cap,
            **terms,
        )
    return _paged.paged_attention(
        query,
        key_cache,
        value_cache,
        block_table,
        query_start_loc,
        seq_lens,
        scale,
        sliding_window,
        logits_soft_cap,
    )


def operations() -> dict[str, Any]:
    """Replacements for Triton's operations, by name."""
    return {"paged_attention": paged_attention, "reshape_and_cache": reshape_and_cache}
