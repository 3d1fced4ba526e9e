"""BERT, RoBERTa, whose first positions are those of padding, ELECTRA, and classes by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, renamed
from vllm_lite.models.encoders.encoder import EncoderModel, encoder_rules, encoder_spec
from vllm_lite.models.heads import Dense, HeadNorm, HeadSpec, classifier, tied
from vllm_lite.models.spec import DecoderSpec, size

LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "post_attention_layernorm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "ffn_output_norm",
}
LAYERS = {f"encoder.layer.*.{old}": f"model.layers.*.{new}" for old, new in LAYER.items()}
EMBEDDING = {
    "embeddings.word_embeddings": "model.embed_tokens",
    "embeddings.position_embeddings": "model.embed_positions",
    "embeddings.token_type_embeddings": "model.embed_types",
    "embeddings.LayerNorm": "model.embed_norm",
}
# Heads of the tasks of training, which others have no use for, and numbers of positions.
UNUSED = ("embeddings", "pooler.dense")
_OF_TRAINING = (
    *("cls.predictions", "cls.predictions.decoder", "cls.seq_relationship"),
    *(f"cls.predictions.transform.{name}" for name in ("dense", "LayerNorm")),
)


class BertModel(EncoderModel):
    """Devlin et al., 2018."""

    # Before the names of tensors, the usual one last.
    roots: ClassVar[Sequence[str]] = ("model.", "", "bert.")

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        names = {**EMBEDDING, **LAYERS}
        unused = [Rule(name) for name in _OF_TRAINING]
        return [*unused, *encoder_rules(cls.roots, names, unused=UNUSED)]


def pooled_classes(facts: ModelFacts, pooler: str) -> dict[str, HeadSpec]:
    """Classes behind BERT's pooler, a layer of that name; those of tokens are without it."""
    last = classifier(facts, "classifier")
    between = Dense(name=pooler, size=facts.hidden_size)
    return {"classify": (between, "tanh", last), "token_classify": (last,)}


class BertForSequenceClassification(BertModel):
    """Classes of a prompt; of each token they are without the layer between."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return pooled_classes(facts, "bert.pooler.dense")


class BertForTokenClassification(BertModel):
    """Classes of each token."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {"token_classify": (classifier(facts, "classifier"),)}


class BertForMaskedLM(BertModel):
    """Scores of every word in place of each token; of a prompt, their weights (SPLADE)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        transform = "cls.predictions.transform"
        names = (f"{transform}.dense", f"{transform}.LayerNorm", "cls.predictions.decoder")
        return head_of_words(facts, cls.spec(facts).norm, names)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        decoder = Part("heads.cls.predictions.decoder")
        rules = tied(super().weight_rules(facts), "model.embed_tokens", decoder)
        return [*rules, Rule("cls.predictions", (decoder,), is_alternative=True)]


def head_of_words(
    facts: ModelFacts, norm: NormSpec, names: tuple[str, str, str]
) -> dict[str, HeadSpec]:
    """The head that scores every word, by the task: sparse vectors (Formal et al., 2021) or not.

    `names` are those of its first layer, its norm and its last layer.
    """
    is_sparse = facts.pooling is not None and facts.pooling.seq_pooling_type == "MAX"
    first, between, last = names
    head = (
        Dense(name=first, size=facts.hidden_size),
        activation_name(facts.hf_config["hidden_act"]),
        HeadNorm(name=between, norm=norm),
        Dense(name=last, size=facts.vocab_size, is_large=True),
    )
    return {"embed" if is_sparse else "token_classify": head}


class HF_ColBERT(BertModel):
    """Short vectors of tokens, compared one by one (Khattab and Zaharia, 2020)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        names = ("colbert_dim", "dim", "projection_dim")
        size = next(filter(None, map(facts.hf_config.get, names)), 128)
        return {"token_embed": (Dense(name="linear", size=size, bias=False),)}


class RobertaModel(BertModel):
    """Liu et al., 2019; XLM-RoBERTa and CamemBERT too."""

    roots: ClassVar[Sequence[str]] = ("model.", "", "roberta.")

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        first = int(facts.hf_config["pad_token_id"]) + 1
        rows = facts.max_position + first
        part = Part("model.embed_positions", slice(first, rows), rows)
        source = "embeddings.position_embeddings"
        positions = [Rule(f"{root}{source}", (part,)) for root in cls.roots]
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


class RobertaForTokenClassification(RobertaModel, BertForTokenClassification):
    """Classes of each token."""


class BgeM3EmbeddingModel(RobertaModel):
    """A vector of the prompt, one of each token, and a weight of each token (Chen et al., 2024)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {
            "token_embed": (Dense(name="colbert_linear", size=facts.hidden_size),),
            "token_classify": (Dense(name="sparse_linear", size=1), "relu"),
        }


class ElectraModel(BertModel):
    """Clark et al., 2020: the embedding may be narrower than the layers."""

    roots: ClassVar[Sequence[str]] = ("", "electra.")

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return replace(encoder_spec(facts), embedding_size=size(facts, "embedding_size"))

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        projections = {f"{root}embeddings_project": "model.embed_project" for root in cls.roots}
        unused = (Rule(f"discriminator_predictions.dense{end}") for end in ("", "_prediction"))
        return [*super().weight_rules(facts), *renamed(projections), *unused]


class ElectraForSequenceClassification(ElectraModel):
    """Classes of a prompt."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        between = Dense(name="classifier.dense", size=facts.hidden_size)
        head = (between, "gelu", classifier(facts, "classifier.out_proj"))
        return {"classify": head, "token_classify": head}


class ElectraForTokenClassification(ElectraModel, BertForTokenClassification):
    """Classes of each token."""
