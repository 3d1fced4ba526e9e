"""BERT, and its classes by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.activation import activation_name
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule
from vllm_lite.models.encoders.encoder import EncoderModel, encoder_rules, tied
from vllm_lite.models.heads import Dense, HeadNorm, HeadSpec, classifier

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


class BertForSequenceClassification(BertModel):
    """Classes of a prompt; of each token they are without the layer between."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        between = Dense(name="bert.pooler.dense", size=facts.hidden_size)
        last = classifier(facts, "classifier")
        return {"classify": (between, "tanh", last), "token_classify": (last,)}


class BertForTokenClassification(BertModel):
    """Classes of each token."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {"token_classify": (classifier(facts, "classifier"),)}


class BertForMaskedLM(BertModel):
    """Scores of every word in place of each token; of a prompt, their weights (SPLADE)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        norm, transform = cls.spec(facts).norm, "cls.predictions.transform"
        return {
            task_of_words(facts): (
                Dense(name=f"{transform}.dense", size=facts.hidden_size),
                activation_name(facts.hf_config["hidden_act"]),
                HeadNorm(name=f"{transform}.LayerNorm", norm=norm),
                Dense(name="cls.predictions.decoder", size=facts.vocab_size, is_large=True),
            )
        }

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        decoder = "heads.cls.predictions.decoder"
        rules = tied(super().weight_rules(facts), "model.embed_tokens", decoder)
        return [*rules, Rule("cls.predictions", (Part(decoder),), is_alternative=True)]


def task_of_words(facts: ModelFacts) -> str:
    """The task that scores of every word answer: of sparse vectors (Formal et al., 2021) or not."""
    is_sparse = facts.pooling is not None and facts.pooling.seq_pooling_type == "MAX"
    return "embed" if is_sparse else "token_classify"


class HF_ColBERT(BertModel):
    """Short vectors of tokens, compared one by one (Khattab and Zaharia, 2020)."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        names = ("colbert_dim", "dim", "projection_dim")
        size = next(filter(None, map(facts.hf_config.get, names)), 128)
        return {"token_embed": (Dense(name="linear", size=size, bias=False),)}
