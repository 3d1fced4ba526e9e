"""Paged attention by the flashinfer package (--attention-backend FLASHINFER).

The package plans each step before its first layer and waits for the contexts' lengths, so CUDA
graphs are not captured. The cache has the layout that it calls HND.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flashinfer
import torch
from torch import Tensor

from vllm_lite.kernels.metadata import AttentionMetadata, current_metadata

# Bytes for partial results, as the package's documentation advises.
_WORKSPACE = 128 << 20


class _Layer(NamedTuple):
    """Properties of a layer that a plan depends on."""

    query_shape: tuple[int, ...]  # T, H, D
    cache_shape: tuple[int, ...]  # B, K, S, D
    dtype: torch.dtype
    scale: float
    sliding_window: int
    logits_soft_cap: float


class PlannedAttention:
    """Attention that plans once a step for consecutive layers of equal properties."""

    def __init__(self) -> None:
        self._wrapper: Any = None
        self._planned: tuple[AttentionMetadata, _Layer] | None = None

    def paged_attention(
        self,
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
        layer = _Layer(
            tuple(query.shape),
            tuple(key_cache.shape),
            query.dtype,
            scale,
            sliding_window,
            logits_soft_cap,
        )
        step = current_metadata()
        if self._planned is None or self._planned[0] is not step or self._planned[1] != layer:
            self._plan(layer, block_table, query_start_loc, seq_lens)
            self._planned = (step, layer)
        attended: Tensor = self._wrapper.run(query, (key_cache, value_cache))
        return attended

    def _plan(
        self, layer: _Layer, block_table: Tensor, query_start_loc: Tensor, seq_lens: Tensor
    ) -> None:
        if self._wrapper is None:
            workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=block_table.device)
            self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        _, num_heads, head_size = layer.query_shape
        _, num_kv_heads, block_size, _ = layer.cache_shape
        num_blocks = (seq_lens + block_size - 1) // block_size
        places = torch.arange(block_table.shape[1], device=block_table.device)
        self._wrapper.plan(
            query_start_loc,
            torch.nn.functional.pad(num_blocks.cumsum(0, dtype=torch.int32), (1, 0)),
            block_table[places < num_blocks[:, None]],
            (seq_lens - 1) % block_size + 1,
            num_heads,
            num_kv_heads,
            head_size,
            block_size,
            causal=True,
            sm_scale=layer.scale,
            window_left=layer.sliding_window - 1,
            logits_soft_cap=layer.logits_soft_cap,
            q_data_type=layer.dtype,
            kv_data_type=layer.dtype,
        )


def operations() -> dict[str, Any]:
    """Replacements for Triton's operations, by name."""
    return {"paged_attention": PlannedAttention().paged_attention}
