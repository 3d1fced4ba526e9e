"""Relatives of BERT with gated MLPs: Nomic's and Alibaba's GTE rotate, Jina's has ALiBi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.score_terms import alibi_slopes
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, fused
from vllm_lite.models.encoders.bert import EMBEDDING, LAYER, BertModel, pooled_classes
from vllm_lite.models.encoders.encoder import EncoderModel, encoder_rules, encoder_spec
from vllm_lite.models.heads import HeadSpec
from vllm_lite.models.spec import DecoderSpec, MLPSpec, mlp_spec, rotary_settings, size, with_layers

_WORDS = {old: new for old, new in EMBEDDING.items() if "position" not in old}
# As transformers names them since its fifth version, for both families.
_LAYER = {
    **{f"self_attn.{name}": f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")},
    "self_attn.o_proj": "self_attn.o_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    **{f"mlp.{name}": f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")},
    "post_mlp_layernorm": "ffn_output_norm",
}
_NOMIC_LAYER = {
    "attn.out_proj": "self_attn.o_proj",
    "norm1": "post_attention_layernorm",
    "mlp.fc11": "mlp.up_proj",
    "mlp.fc12": "mlp.gate_proj",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
    "norm2": "ffn_output_norm",
}
_GTE_LAYER = {
    "attention.o_proj": "self_attn.o_proj",
    "attn_ln": "post_attention_layernorm",
    "mlp.down_proj": "mlp.down_proj",
    "mlp_ln": "ffn_output_norm",
}
_JINA_NAMES = {
    **_WORDS,
    **{
        f"encoder.layer.*.{old}": f"model.layers.*.{new}"
        for old, new in {
            **{old: new for old, new in LAYER.items() if old.startswith("attention")},
            "mlp.wo": "mlp.down_proj",
            "mlp.layernorm": "ffn_output_norm",
        }.items()
    },
}
# Nomic's activations: those of OpenAI's kernels, and whether they have a gate.
_ACTIVATIONS = {"swiglu": ("silu", True), "geglu": ("gelu", True), "gelu": ("gelu", False)}


class RotatedModel(EncoderModel):
    """The layers of both families, and the names of their tensors."""

    # Before the names of tensors, the usual one last; of layers, and their names.
    roots: ClassVar[Sequence[str]]
    layers: ClassVar[str]
    names: ClassVar[Mapping[str, str]]
    qkv: ClassVar[str]

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        width = facts.num_heads * facts.head_size
        sizes = dict.fromkeys(("q_proj", "k_proj", "v_proj"), width)
        unused = ("embeddings", "pooler.dense")
        new = "model.layers.*"
        later = {f"layers.*.{old}": f"{new}.{own}" for old, own in _LAYER.items()}
        first = {f"{cls.layers}.*.{old}": f"{new}.{own}" for old, own in cls.names.items()}
        names = {**_WORDS, "emb_ln": "model.embed_norm"}
        return [
            *(Rule(name) for name in ("classifier", "lm_head.dense", "lm_head.norm")),
            *encoder_rules(cls.roots, {**_WORDS, **later}, unused=unused),
            *encoder_rules(cls.roots, {**names, **_WORDS, **first}, unused=unused),
            *(
                fused(f"{root}{cls.layers}.*.{cls.qkv}", f"{new}.self_attn", sizes)
                for root in cls.roots
            ),
        ]


class NomicBertModel(RotatedModel):
    """Nussbaum et al., 2024."""

    roots: ClassVar[Sequence[str]] = ("bert.", "nomic_bert.", "")
    layers: ClassVar[str] = "encoder.layers"
    names: ClassVar[Mapping[str, str]] = _NOMIC_LAYER
    qkv: ClassVar[str] = "attn.Wqkv"

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        named = hf.get("activation_function") or ""
        if named and named not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise CheckpointError(f"activation_function is {named!r}; known are {known}")
        act, is_gated = _ACTIVATIONS.get(named, (hf["hidden_act"], True))
        bias, down_bias = (bool(hf.get(f"mlp_fc{i}_bias")) for i in (1, 2))
        ffn = mlp_spec(facts, act=act, is_gated=is_gated, bias=bias, down_bias=down_bias)
        return rotated(facts, ffn, bias=bool(hf.get("qkv_proj_bias")))


class GteModel(RotatedModel):
    """Zhang et al., 2024."""

    roots: ClassVar[Sequence[str]] = ("gte.", "", "new.")
    layers: ClassVar[str] = "encoder.layer"
    names: ClassVar[Mapping[str, str]] = _GTE_LAYER
    qkv: ClassVar[str] = "attention.qkv_proj"

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return rotated(facts, mlp_spec(facts, down_bias=True), bias=True)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        halves = dict.fromkeys(("up_proj", "gate_proj"), size(facts, "intermediate_size"))
        source = f"{cls.layers}.*.mlp.up_gate_proj"
        rules = [fused(f"{root}{source}", "model.layers.*.mlp", halves) for root in cls.roots]
        return [*super().weight_rules(facts), *rules]


class GteForSequenceClassification(GteModel):
    """Classes of a prompt; of each token they are without the layer between."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return pooled_classes(facts, "new.pooler.dense")

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        later = Rule("gte.pooler.dense", (Part("heads.new.pooler.dense"),), is_alternative=True)
        return [*super().weight_rules(facts), later]


def rotated(facts: ModelFacts, ffn: MLPSpec, *, bias: bool) -> DecoderSpec:
    """BERT's shape with rotation in place of learned positions."""
    spec = encoder_spec(facts, bias=bias)
    mixer = {"rotary": rotary_settings(facts)}
    return replace(with_layers(spec, mixer, ffn=ffn), num_learned_positions=0)


class JinaBertModel(BertModel):
    """Guenther et al., 2023."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        mixer = {"alibi_slopes": alibi_slopes(facts.num_heads)}
        spec = with_layers(encoder_spec(facts), mixer, ffn=mlp_spec(facts, down_bias=True))
        return replace(spec, num_learned_positions=0)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        halves = dict.fromkeys(("gate_proj", "up_proj"), size(facts, "intermediate_size"))
        gated = "encoder.layer.*.mlp.gated_layers"
        of_gguf = fused("blk.*.ffn_up", "model.layers.*.mlp", halves)
        return [
            replace(of_gguf, is_alternative=True),
            *super().weight_rules(facts),
            *encoder_rules(cls.roots, _JINA_NAMES),
            *(fused(f"{root}{gated}", "model.layers.*.mlp", halves) for root in cls.roots),
        ]
