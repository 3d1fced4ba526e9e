"""The interface between a model and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.state import StateCache


class Model(Protocol):
    """A model with its weights loaded."""

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] and [T] int64 -> hidden states [T, N], inside `attention_metadata(...)`."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """The cache of each of this rank's layers; none of a model whose tokens see later ones."""

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        """Use these, one for each layer of the spec's layers and states, from now on."""


class PoolingModel(Model, Protocol):
    """A model that answers tasks of config.pooling.TASKS."""

    def pooled(self, task: str, rows: Tensor) -> Tensor:
        """Pooled hidden states [R, N] -> vectors or logits [R, M] float32, before any activation.

        A row's bits do not depend on the others.
        """


class CausalLM(Model, Protocol):
    """A model that predicts the next token."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, N] -> logits [R, V] float32, V being the vocabulary's size.

        They may lie in memory that the next call overwrites.
        """

    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [R, N] -> tokens [R] int64 and their logits [R], the largest.

        A row whose largest logit is not finite admits no token; its id is below V all the same.
        """
