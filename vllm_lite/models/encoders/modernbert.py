"""ModernBERT: rotation, gated MLPs, and in most layers a window in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule, Rule, fused
from vllm_lite.models.encoders.encoder import EncoderModel, encoder_rules
from vllm_lite.models.heads import Dense, HeadNorm, HeadSpec, classifier
from vllm_lite.models.spec import (
    DecoderSpec,
    LayerSpec,
    attention_spec,
    mlp_spec,
    positive,
    rotary_settings,
    size,
    spec_of,
)

_NAMES = {
    "embeddings.tok_embeddings": "model.embed_tokens",
    "embeddings.norm": "model.embed_norm",
    "final_norm": "model.norm",
    "layers.*.attn_norm": "model.layers.*.input_layernorm",
    "layers.*.attn.Wo": "model.layers.*.self_attn.o_proj",
    "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.mlp.Wo": "model.layers.*.mlp.down_proj",
}
_ROOTS = ("", "model.")


class ModernBertModel(EncoderModel):
    """Warner et al., 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        bias = bool(hf["attention_bias"])
        norm = NormSpec(kind="layer", eps=positive(facts, "norm_eps", 1e-5), bias=hf["norm_bias"])
        ffn = mlp_spec(facts, bias=bool(hf["mlp_bias"]))
        layers = []
        for i, window in enumerate(facts.layer_windows):
            mixer = attention_spec(
                facts,
                num_kv_heads=facts.num_heads,
                rotary=rotary_settings(facts, _KINDS[facts.local_layers[i]]),
                # A token sees as many on each side.
                window=None if window is None else window - 1,
                is_bidirectional=True,
                qkv_bias=bias,
                output_bias=bias,
            )
            # The embedding's norm is also the first layer's.
            layers.append(LayerSpec(mixer=mixer, ffn=ffn, norms="before" if i else "before ffn"))
        return spec_of(facts, norm, layers)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        width = facts.num_heads * facts.head_size
        qkv = dict.fromkeys(("q_proj", "k_proj", "v_proj"), width)
        halves = dict.fromkeys(("gate_proj", "up_proj"), size(facts, "intermediate_size"))
        rules: list[AnyRule] = [Rule(name) for name in ("decoder", "head.dense", "head.norm")]
        of_gguf = fused("blk.*.ffn_up", "model.layers.*.mlp", halves)
        rules.append(replace(of_gguf, is_alternative=True))
        for root in _ROOTS:
            layer = f"{root}layers.*"
            rules += [
                fused(f"{layer}.attn.Wqkv", "model.layers.*.self_attn", qkv),
                fused(f"{layer}.mlp.Wi", "model.layers.*.mlp", halves),
            ]
        return [*rules, *encoder_rules(_ROOTS, _NAMES)]


class ModernBertForSequenceClassification(ModernBertModel):
    """Classes of a prompt."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        head = (*_between(facts, cls.spec(facts).norm), classifier(facts, "classifier"))
        return {"classify": head, "token_classify": head}


class ModernBertForTokenClassification(ModernBertForSequenceClassification):
    """Classes of each token."""


def _between(facts: ModelFacts, norm: NormSpec) -> HeadSpec:
    hf = facts.hf_config
    return (
        Dense(name="head.dense", size=facts.hidden_size, bias=bool(hf["classifier_bias"])),
        activation_name(hf["classifier_activation"]),
        HeadNorm(name="head.norm", norm=norm),
    )


_KINDS = {True: "sliding_attention", False: "full_attention"}
