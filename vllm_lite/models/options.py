"""Options of building a model's layers, beside their specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vllm_lite.core.kv_spec import CacheFormat
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
    # Whether the checkpoint has scales for each layer's cached keys and values.
    cache_has_scales: bool = False
    path: str = ""

    def at(self, name: str) -> BuildOptions:
        """Options of the child `name`."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    @property
    def linear_method(self) -> LinearMethod:
        """How the layer at `path` stores its weights."""
        return self.methods(self.path)

    def parts(self, hidden_size: int) -> MixerParts:
        """Options of a mixer with a state at `path`."""
        return MixerParts(hidden_size, lambda name: self.at(name).linear_method, self.dtype)
