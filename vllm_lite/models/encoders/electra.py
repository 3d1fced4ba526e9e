"""ELECTRA: BERT whose embedding may be narrower than its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule, Rule, renamed
from vllm_lite.models.encoders.bert import BertModel
from vllm_lite.models.encoders.encoder import encoder_spec
from vllm_lite.models.heads import Dense, HeadSpec, classifier
from vllm_lite.models.spec import DecoderSpec, size

_OF_TRAINING = ("discriminator_predictions.dense", "discriminator_predictions.dense_prediction")


class ElectraModel(BertModel):
    """Clark et al., 2020."""

    roots: ClassVar[Sequence[str]] = ("", "electra.")

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return replace(encoder_spec(facts), embedding_size=size(facts, "embedding_size"))

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        projections = {f"{root}embeddings_project": "model.embed_project" for root in cls.roots}
        unused = (Rule(name) for name in _OF_TRAINING)
        return [*super().weight_rules(facts), *renamed(projections), *unused]


class ElectraForSequenceClassification(ElectraModel):
    """Classes of a prompt."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        between = Dense(name="classifier.dense", size=facts.hidden_size)
        head = (between, "gelu", classifier(facts, "classifier.out_proj"))
        return {"classify": head, "token_classify": head}


class ElectraForTokenClassification(ElectraModel):
    """Classes of each token."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {"token_classify": (classifier(facts, "classifier"),)}
