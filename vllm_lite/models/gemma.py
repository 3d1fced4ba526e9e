"""Gemma and its second generation: norms that store their weight minus 1, a scaled embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Rule, plus_one, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec, positive, with_layers

# Norms around both blocks, by their names from the second generation on.
FOUR_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "mixer_output_norm",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "ffn_output_norm",
}


class GemmaForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        config = facts.hf_config
        if config["hidden_act"] == "gelu":  # an old spelling, by which the other form is meant
            config = {**config, "hidden_act": "gelu_pytorch_tanh"}
        return gemma_spec(replace(facts, hf_config=config))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        return stored_minus_one(
            {name: name for name in ("input_layernorm", "post_attention_layernorm")}
        )


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2024: soft caps, norms around each block, and windows in every other layer."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_layers(capped_spec(facts), {}, norms="both")

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        return stored_minus_one(FOUR_NORMS)


class VaultGemmaForCausalLM(DecoderForCausalLM):
    """Gemma 2 with norms before blocks alone (Sinha et al., 2025)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return capped_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        second = {"pre_feedforward_layernorm": "post_attention_layernorm"}
        return stored_minus_one({"input_layernorm": "input_layernorm", **second})


def capped_spec(facts: ModelFacts) -> DecoderSpec:
    """Gemma's parts with a scale of scores by itself, and soft caps of scores and logits."""
    mixer = {
        "scale": positive(facts, "query_pre_attn_scalar", 256) ** -0.5,
        "softcap": float(facts.hf_config.get("attn_logit_softcapping") or 0),
    }
    cap = float(facts.hf_config.get("final_logit_softcapping") or 0)
    return replace(with_layers(gemma_spec(facts), mixer), logit_cap=cap)


def gemma_spec(facts: ModelFacts) -> DecoderSpec:
    """Llama's shape with Gemma's norms, before blocks alone, and its scaled embedding."""
    bias = bool(facts.hf_config.get("attention_bias"))
    plain = decoder_spec(facts, qkv_bias=bias, output_bias=bias)
    return replace(
        plain,
        norm=NormSpec(eps=plain.norm.eps, in_float32=True),
        embedding_scale=facts.hidden_size**0.5,
    )


def stored_minus_one(norms: dict[str, str]) -> list[Rule]:
    """Rules of the last norm and of a layer's `norms`, by their names in a checkpoint."""
    layer = "model.layers.*"
    names = {f"{layer}.{old}": f"{layer}.{new}" for old, new in norms.items()}
    return renamed({**names, "model.norm": "model.norm"}, transform=plus_one)
