"""DistilBERT: BERT without token types, under other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule
from vllm_lite.models.encoders.bert import EMBEDDING, BertForTokenClassification, head_of_words
from vllm_lite.models.encoders.encoder import EncoderModel, encoder_rules, encoder_spec
from vllm_lite.models.heads import Dense, HeadSpec, classifier, tied
from vllm_lite.models.spec import DecoderSpec

_LAYER = {
    "attention.q_lin": "self_attn.q_proj",
    "attention.k_lin": "self_attn.k_proj",
    "attention.v_lin": "self_attn.v_proj",
    "attention.out_lin": "self_attn.o_proj",
    "sa_layer_norm": "post_attention_layernorm",
    "ffn.lin1": "mlp.up_proj",
    "ffn.lin2": "mlp.down_proj",
    "output_layer_norm": "ffn_output_norm",
}
_NAMES = {
    **EMBEDDING,
    **{f"transformer.layer.*.{old}": f"model.layers.*.{new}" for old, new in _LAYER.items()},
}
_OF_TRAINING = ("vocab_transform", "vocab_layer_norm", "vocab_projector")


class DistilBertModel(EncoderModel):
    """Sanh et al., 2019."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return replace(encoder_spec(facts), norm=NormSpec(kind="layer", eps=1e-12, bias=True))

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        unused = [Rule(name) for name in _OF_TRAINING]
        roots = ("", "distilbert.")
        return [*unused, *encoder_rules(roots, _NAMES, unused=("embeddings",))]


class DistilBertForSequenceClassification(DistilBertModel):
    """Classes of a prompt."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        between = Dense(name="pre_classifier", size=facts.hidden_size)
        head = (between, "relu", classifier(facts, "classifier"))
        return {"classify": head, "token_classify": head}


class DistilBertForTokenClassification(DistilBertModel, BertForTokenClassification):
    """Classes of each token."""


class DistilBertForMaskedLM(DistilBertModel):
    """Scores of every word in place of each token; of a prompt, their weights (SPLADE)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        names = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
        return head_of_words(facts, cls.spec(facts).norm, names)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        rules = super().weight_rules(facts)
        own = [
            rule for rule in rules if not (isinstance(rule, Rule) and rule.source in _OF_TRAINING)
        ]
        return tied(own, "model.embed_tokens", Part("heads.vocab_projector"))
