"""The shape of what a model caches, for each token or for each request; knows no memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

_ITEM_SIZES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
_SCALE_BYTES = 4  # of a float32


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How a key or value is stored: numbers of a torch type, and maybe one scale for all of them.

    The scale, a float32 that the numbers are multiplied by, follows them in the cache.
    """

    dtype: str
    has_row_scales: bool = False


# dtypes of --kv-cache-dtype; any other name means the model's own.
CACHE_FORMATS = {
    "float32": CacheFormat("float32"),
    "bfloat16": CacheFormat("bfloat16"),
    "fp8": CacheFormat("float8_e4m3fn"),
    "fp8_e4m3": CacheFormat("float8_e4m3fn"),
    "fp8_e5m2": CacheFormat("float8_e5m2"),
    "fp8_per_token_head": CacheFormat("float8_e4m3fn", has_row_scales=True),
    "int8": CacheFormat("int8", has_row_scales=True),
    "int8_per_token_head": CacheFormat("int8", has_row_scales=True),
}


@dataclass(frozen=True, slots=True)
class LayerCacheSpec:
    """Keys and values of one layer.

    `sliding_window` w: the key at position j is visible to position i iff i - j < w.
    `latent_size` n: values are the first n numbers of keys, and are not stored beside them.
    `value_size`: numbers of a head's value, if not head_size.
    """

    num_kv_heads: int
    head_size: int
    dtype: str
    sliding_window: int | None = None
    has_row_scales: bool = False
    latent_size: int | None = None
    value_size: int | None = None

    @property
    def row_sizes(self) -> tuple[int, int]:
        """Elements of one key and of one value of one head, scales included."""
        scale = _SCALE_BYTES if self.has_row_scales else 0
        values = 0 if self.latent_size is not None else (self.value_size or self.head_size) + scale
        return self.head_size + scale, values

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return _ITEM_SIZES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        return sum(self.row_sizes) * self.num_kv_heads * self.item_size


@dataclass(frozen=True, slots=True)
class StateCacheSpec:
    """Float32 tensors that one layer keeps of a request's past instead of keys and values."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that one request's state takes."""
        return 4 * sum(prod(shape) for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The cache of each layer of a model, in layer order for each kind."""

    layers: tuple[LayerCacheSpec, ...]
    states: tuple[StateCacheSpec, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return sum(layer.bytes_per_token for layer in self.layers)

    @property
    def bytes_per_state(self) -> int:
        """Bytes that one request's state takes over all layers; 0 where no layer has any."""
        return sum(state.num_bytes for state in self.states)
