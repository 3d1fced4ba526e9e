"""MPNet: RoBERTa whose scores have a number for each head and distance, alike in all layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import Shard, head_shards
from vllm_lite.layers.encoder_attention import EncoderAttention
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.encoders.bert import (
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)
from vllm_lite.models.encoders.encoder import encoder_rules
from vllm_lite.models.options import BuildOptions

# Distances that share a number: half of the buckets for each direction, single distances in half of
# those, and up to the largest distance in steps that grow.
_BUCKETS, _LARGEST = 32, 128
_NAMES = {
    f"encoder.layer.*.attention.{old}": f"model.layers.*.{new}"
    for old, new in {
        **{f"attn.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
        "LayerNorm": "post_attention_layernorm",
    }.items()
}


def distance_buckets(distances: Tensor) -> Tensor:
    """The bucket of each distance int64 of a key behind its query (Raffel et al., 2020)."""
    far, single = distances.abs(), _BUCKETS // 4
    growth = math.log(_LARGEST / single)
    steps = torch.log(far.clamp(min=1).float() / single) / growth * (_BUCKETS // 2 - single)
    grown = (single + steps.long()).clamp(max=_BUCKETS // 2 - 1)
    return torch.where(far < single, far, grown) + (distances > 0) * (_BUCKETS // 2)


class DistanceTerms(nn.Module):
    """The numbers that all layers add to scores."""

    def __init__(self, heads: Shard, max_length: int) -> None:
        super().__init__()
        self._heads, self._middle = heads, max_length - 1
        self._table = torch.empty(_BUCKETS, heads.size)
        # By distance, [H, 2L - 1], where they stay.
        self.numbers = torch.empty(heads.size, 2 * max_length - 1)

    def weight_slots(self) -> Iterator[NamedSlot]:
        shape = (_BUCKETS, self._heads.full_size)
        slot = WeightSlot(self._table, shape, (0, self._heads.start), output_dim=None)
        yield NamedSlot("", "weight", slot)

    def process_weights_after_loading(self) -> None:
        distances = torch.arange(-self._middle, self._middle + 1, device=self._table.device)
        self.numbers.copy_(self._table[distance_buckets(distances)].T)


class MPNetModel(RobertaModel):
    """Song et al., 2020."""

    roots: ClassVar[Sequence[str]] = ("model.", "", "mpnet.")

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        heads = head_shards(facts.num_heads, facts.num_heads)[0]
        self.distances = DistanceTerms(heads, facts.max_position)
        attention: Any
        for attention in (layer.self_attn for layer in self.model.layers):
            attention.attn = EncoderAttention(
                facts.head_size**-0.5, distance_terms=self.distances.numbers
            )

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        names = {**_NAMES, "encoder.relative_attention_bias": "distances"}
        return [*super().weight_rules(facts), *encoder_rules(cls.roots, names)]


class MPNetForSequenceClassification(MPNetModel, RobertaForSequenceClassification):
    """Classes of a prompt."""


class MPNetForTokenClassification(MPNetModel, RobertaForTokenClassification):
    """Classes of each token."""
