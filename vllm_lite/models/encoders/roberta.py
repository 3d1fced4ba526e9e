"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose first positions are those of padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule
from vllm_lite.models.encoders.bert import BertModel
from vllm_lite.models.heads import Dense, HeadSpec, classifier

_POSITIONS = "embeddings.position_embeddings"


class RobertaModel(BertModel):
    """Liu et al., 2019."""

    roots: ClassVar[Sequence[str]] = ("model.", "", "roberta.")

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        first = int(facts.hf_config["pad_token_id"]) + 1
        rows = facts.max_position + first
        part = Part("model.embed_positions", slice(first, rows), rows)
        positions = [Rule(f"{root}{_POSITIONS}", (part,)) for root in cls.roots]
        # Of training.
        unused = (Rule(name) for name in ("lm_head", "lm_head.dense", "lm_head.layer_norm"))
        return [*super().weight_rules(facts), *positions, *unused, Rule("lm_head.decoder")]


class RobertaForSequenceClassification(RobertaModel):
    """Classes of a prompt."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        between = Dense(name="classifier.dense", size=facts.hidden_size)
        head = (between, "tanh", classifier(facts, "classifier.out_proj"))
        return {"classify": head, "token_classify": head}


class RobertaForTokenClassification(RobertaModel):
    """Classes of each token."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {"token_classify": (classifier(facts, "classifier"),)}


class BgeM3EmbeddingModel(RobertaModel):
    """A vector of the prompt, one of each token, and a weight of each token (Chen et al., 2024)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {
            "token_embed": (Dense(name="colbert_linear", size=facts.hidden_size),),
            "token_classify": (Dense(name="sparse_linear", size=1), "relu"),
        }
