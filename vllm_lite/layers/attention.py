"""The attention layer: writes the step's keys and values, then attends to the paged cache.

It owns the binding to its cache tensors and its window; where tokens lie in the cache comes
from the current AttentionMetadata.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_lite.attention.metadata import current_metadata
from vllm_lite.kernels.dispatch import ops


class Attention(nn.Module):
    """Causal scaled dot-product attention over one layer's paged cache."""

    def __init__(self, scale: float, sliding_window: int | None = None) -> None:
        super().__init__()
        self._scale = scale
        self._window = sliding_window or 0
        self._key_cache = self._value_cache = torch.empty(0)
        self._ops = ops()

    def bind_kv_cache(self, key_cache: Tensor, value_cache: Tensor) -> None:
        """Use these [B, K, S, row] tensors from now on."""
        self._key_cache = key_cache
        self._value_cache = value_cache

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, H, D], key and value [T, K, D], of any row stride -> [T, H, D]."""
        step = current_metadata()
        key_cache, value_cache = self._key_cache, self._value_cache
        self._ops.reshape_and_cache(key, value, key_cache, value_cache, step.slot_mapping)
        return self._ops.paged_attention(
            query,
            key_cache,
            value_cache,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            self._scale,
            self._window,
        )
