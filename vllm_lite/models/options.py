"""Options of building a model's layers, beside their specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vllm_lite.core.kv_spec import CacheFormat
from vllm_lite.distributed.groups import Shard
from vllm_lite.layers.linear import ParallelLinear
from vllm_lite.layers.state import MixerParts
from vllm_lite.quantization.method import LinearMethod


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of building layers: storage and caches, for any architecture."""

    dtype: torch.dtype
    cache_format: CacheFormat
    max_model_len: int
    # By the path of a layer.
    methods: Callable[[str], LinearMethod]
    # The checkpoint's scales of cached keys and values: of a layer's, or of each head's.
    cache_scales: Literal["layer", "head"] | None = None
    path: str = ""

    def at(self, name: str) -> BuildOptions:
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    @property
    def linear_method(self) -> LinearMethod:
        """How the layer at `path` stores its weights."""
        return self.methods(self.path)

    def whole_linear(self, inputs: int, outputs: int, *, bias: bool = False) -> ParallelLinear:
        """A linear layer at `path` that every rank has in full."""
        shards = {"": Shard.whole(outputs)}
        return ParallelLinear(self.linear_method, Shard.whole(inputs), shards, bias=bias)

    def scales_of(self, kv_heads: Shard) -> Shard | None:
        """This rank's part of the checkpoint's scales for a layer's keys, or values."""
        return {None: None, "layer": Shard.whole(1), "head": kv_heads}[self.cache_scales]

    def parts(self, hidden_size: int) -> MixerParts:
        return MixerParts(hidden_size, lambda name: self.at(name).linear_method, self.dtype)
