"""Paged attention on an NVIDIA GPU by the compiled module vllm_lite._cuda.

A CUDA kernel serves decode-only steps, since each token reads its context anew; Triton serves all
others.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import vllm_lite._cuda as _cuda
from vllm_lite.kernels.gpu.cuda.paged import PagedOps
from vllm_lite.kernels.gpu.triton.attention import paged as triton_attention

_paged = PagedOps(_cuda)


def paged_attention(query: Tensor, *caches_and_batch: Any, **terms: Any) -> Tensor:
    """As in `reference`."""
    keys, values, block_table = caches_and_batch[:3]
    is_decode = query.shape[0] == block_table.shape[0]
    is_plain = keys.shape == values.shape and all(term is None for term in terms.values())
    if is_decode and is_plain:
        return _paged.paged_attention(query, *caches_and_batch)
    return triton_attention.paged_attention(query, *caches_and_batch, **terms)


def operations() -> dict[str, Any]:
    """Replacements for Triton's operations, by name."""
    return {"paged_attention": paged_attention}
