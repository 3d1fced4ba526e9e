"""The attention layer: writes the step's keys and values, then attends to the paged cache.

It owns the binding to its cache tensors, its window and the checkpoint's scales of the cache;
slots and block tables come from the current AttentionMetadata.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.metadata import current_metadata
from vllm_lite.layers.weights import NamedSlot, WeightSlot


class LayerCache(NamedTuple):
    """One layer's cached keys and values, and the index of its block table's group."""

    key: Tensor  # [B, K, S, row]
    value: Tensor
    group: int = 0


class Attention(nn.Module):
    """Causal scaled dot-product attention over one layer's paged cache."""

    def __init__(self, scale: float, sliding_window: int | None = None) -> None:
        super().__init__()
        self._scale = scale
        self._window = sliding_window or 0
        self._key_cache = self._value_cache = torch.empty(0)
        self._group = 0
        self._ops = ops()

    def bind_kv_cache(self, cache: LayerCache) -> None:
        """Use the tensors of `cache` from now on."""
        self._key_cache, self._value_cache, self._group = cache

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, H, D], key and value [T, K, D], of any row stride -> [T, H, D]."""
        step = current_metadata()
        key_cache, value_cache = self._key_cache, self._value_cache
        self._ops.reshape_and_cache(
            key, value, key_cache, value_cache, step.slot_mappings[self._group]
        )
        return self._ops.paged_attention(
            query,
            key_cache,
            value_cache,
            step.block_tables[self._group],
            step.query_start_loc,
            step.seq_lens,
            self._scale,
            self._window,
        )


class ScaledCacheAttention(Attention):
    """Attention over an 8-bit cache with the checkpoint's scales of keys and values.

    It stores key / k_scale and value / v_scale, rounded to their own type first. The scales return
    in a factor of the scores and one of the result, so that every backend's kernels can be used:
    softmax(q k^T s) v = v_scale softmax(q (k / k_scale)^T s k_scale) (v / v_scale).
    """

    def __init__(self, scale: float, sliding_window: int | None = None) -> None:
        super().__init__(scale, sliding_window)
        # Read once, on the host: kernels take them as floats.
        self._scales = torch.empty(2, 1, dtype=torch.float32, device="cpu")
        self._key_scale = self._value_scale = 1.0

    def weight_slots(self) -> Iterator[NamedSlot]:
        for name, number in zip(("k_scale", "v_scale"), self._scales, strict=True):
            yield NamedSlot("", name, WeightSlot.whole(number))

    def process_weights_after_loading(self) -> None:
        self._key_scale, self._value_scale = self._scales.flatten().tolist()
        if not 0 < self._key_scale < math.inf or not 0 < self._value_scale < math.inf:
            raise CheckpointError(
                f"scales of a layer's cache are {self._key_scale} and {self._value_scale}; "
                "use --kv-cache-dtype auto"
            )
        self._scale *= self._key_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, H, D], key and value [T, K, D], of any row stride -> [T, H, D]."""
        mixed = super().forward(query, key / self._key_scale, value / self._value_scale)
        return mixed.mul_(self._value_scale)


def attention(
    scale: float, sliding_window: int | None = None, *, cache_has_scales: bool = False
) -> Attention:
    """Make a layer's attention, with cache scales if its checkpoint has them."""
    kind = ScaledCacheAttention if cache_has_scales else Attention
    return kind(scale, sliding_window)
