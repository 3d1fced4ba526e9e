"""The shape of what a model caches for each token; knows no blocks and no memory."""

from __future__ import annotations

from dataclasses import dataclass

_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Keys and values of `num_layers` alike layers.

    `sliding_window` w: the key at position j is visible to position i iff i - j < w.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype: str
    sliding_window: int | None = None

    @property
    def item_size(self) -> int:
        """Bytes of one element."""
        return _ITEM_SIZES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.item_size
