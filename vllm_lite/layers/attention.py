"""The attention layer: writes the step's keys and values, then attends to the paged cache.

It owns the binding to its cache tensors, its window, what is done to scores, and the checkpoint's
scales of the cache; slots and block tables come from the current AttentionMetadata.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.metadata import current_metadata
from vllm_lite.layers.score_terms import ScoreTerms, check_arguments, per_head
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.quantization.method import Unpacking

# Operations that take all the reference does, whatever the size of values, take this argument.
_WITH_ALL = ("lse",)


class LayerCache(NamedTuple):
    """One layer's cached keys and values, and the index of its block table's group."""

    key: Tensor  # [B, K, S, row]
    value: Tensor
    group: int = 0


class Attention(nn.Module, WeightedLayer):
    """Causal scaled dot-product attention over one layer's paged cache."""

    def __init__(
        self, scale: float, sliding_window: int | None = None, terms: ScoreTerms | None = None
    ) -> None:
        super().__init__()
        self._scale = scale
        self._window = sliding_window or 0
        self._softcap = 0.0 if terms is None else terms.softcap
        self._heads = None if terms is None else terms.heads
        # Further arguments of the operation.
        self._terms: dict[str, Any] = {} if terms is None else {**per_head(terms)}
        if terms is not None and terms.is_chunked:
            self._terms["is_chunked"] = True
        self._key_cache = self._value_cache = torch.empty(0)
        self._group = 0
        self._ops = ops()
        check_arguments(self._ops.paged_attention, self._terms)

    def weight_slots(self) -> Iterator[NamedSlot]:
        if self._heads is not None and "sinks" in self._terms:
            full, start = (self._heads.full_size,), (self._heads.start,)
            yield NamedSlot("", "sinks", WeightSlot(self._terms["sinks"], full, start))

    def bind_kv_cache(self, cache: LayerCache) -> None:
        self._key_cache, self._value_cache, self._group = cache

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, H, D], key and value [T, K, D], of any row stride -> [T, H, D]."""
        slots = current_metadata().slot_mappings[self._group]
        self._ops.reshape_and_cache(key, value, self._key_cache, self._value_cache, slots)
        return self.attend(query)

    def destination(self) -> tuple[Tensor, Tensor, Tensor]:
        """The caches of keys and of values, and the slots [T] of the step's tokens in them."""
        return self._key_cache, self._value_cache, current_metadata().slot_mappings[self._group]

    def attend(self, query: Tensor) -> Tensor:
        """Attend by query [T, H, D] to what is cached; of another layer, it may be."""
        step = current_metadata()
        return self._ops.paged_attention(
            query,
            self._key_cache,
            self._value_cache,
            step.block_tables[self._group],
            step.query_start_loc,
            step.seq_lens,
            self._scale,
            self._window,
            self._softcap,
            **self._terms,
        )


class ScaledCacheAttention(Attention):
    """Attention over an 8-bit cache with the checkpoint's scales of a layer's keys and values.

    It stores key / k_scale and value / v_scale, rounded to their own type first. The scales return
    in a factor of the scores and one of the result, so that every backend's kernels can be used:
    softmax(q k^T s) v = v_scale softmax(q (k / k_scale)^T s k_scale) (v / v_scale).
    """

    _unpacking: ClassVar[Unpacking | None] = None

    def __init__(
        self,
        scale: float,
        sliding_window: int | None = None,
        terms: ScoreTerms | None = None,
        scales: Shard | None = None,
    ) -> None:
        """`scales` is this rank's part of the keys' scales, and of the values'; None: one each."""
        super().__init__(scale, sliding_window, terms)
        self._shard = scales or Shard.whole(1)
        # Read once, on the host: kernels take them as floats.
        self._scales = torch.empty(2, self._shard.size, dtype=torch.float32, device="cpu")
        self._key_scale = self._value_scale = 1.0

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield from super().weight_slots()
        full, start = (self._shard.full_size,), (self._shard.start,)
        for name, numbers in zip(("k_scale", "v_scale"), self._scales, strict=True):
            yield NamedSlot("", name, WeightSlot(numbers, full, start, unpacking=self._unpacking))

    def process_weights_after_loading(self) -> None:
        for key, value in self._scales.T.tolist():
            if not 0 < key < math.inf or not 0 < value < math.inf:
                raise CheckpointError(
                    f"scales of a layer's cache are {key} and {value}; use --kv-cache-dtype auto"
                )
        self._take_scales()

    def _take_scales(self) -> None:
        self._key_scale, self._value_scale = self._scales.flatten().tolist()
        self._scale *= self._key_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().forward(query, key / self._key_scale, value / self._value_scale)

    def attend(self, query: Tensor) -> Tensor:
        return super().attend(query).mul_(self._value_scale)


class HeadScaledCacheAttention(ScaledCacheAttention):
    """The same with scales of each head's keys and values: queries take those of the scores."""

    # Of K heads [K, 1, 1], as compressed-tensors writes them, or [K].
    _unpacking = Unpacking(
        None,
        lambda shape: (*shape, 1, 1),
        lambda stored, _: stored.flatten(),
        Unpacking(None, tuple, lambda stored, _: stored),
    )

    def _take_scales(self) -> None:
        self._by_head = self._scales[..., None].to(self._key_cache.device)  # [2, K, 1]

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._by_head
        key, value = (key / keys).to(key.dtype), (value / values).to(value.dtype)
        return Attention.forward(self, query, key, value)

    def attend(self, query: Tensor) -> Tensor:
        keys, values = self._by_head[..., None]
        shared = torch.unflatten(query, 1, (len(keys), -1))  # [T, K, H / K, D]
        mixed = Attention.attend(self, (shared * keys).to(query.dtype).flatten(1, 2))
        torch.unflatten(mixed, 1, (len(values), -1)).mul_(values)
        return mixed


def attention(
    scale: float,
    sliding_window: int | None = None,
    terms: ScoreTerms | None = None,
    *,
    cache_scales: Shard | None = None,
    has_value_size: bool = False,
) -> Attention:
    """Make a layer's attention, with `cache_scales` if its checkpoint has scales of the cache.

    With has_value_size, values are of another size than keys.
    """
    if has_value_size:
        check_arguments(ops().paged_attention, _WITH_ALL, "values of a size of their own")
    if cache_scales is None:
        return Attention(scale, sliding_window, terms)
    is_one = cache_scales.full_size == 1
    kind = ScaledCacheAttention if is_one else HeadScaledCacheAttention
    return kind(scale, sliding_window, terms, cache_scales)
