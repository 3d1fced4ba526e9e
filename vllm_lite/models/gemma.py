"""Gemma: norms that store their weight minus 1, a scaled embedding; then soft caps and windows."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Rule, plus_one, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import (
    DecoderSpec,
    biased_spec,
    positive,
    rotary_settings,
    with_layers,
    with_rotaries,
)

_TWO_NORMS = {name: name for name in ("input_layernorm", "post_attention_layernorm")}
# Norms around both blocks, by their names from the second generation on.
FOUR_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "mixer_output_norm",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "ffn_output_norm",
}


def stored_minus_one(norms: dict[str, str]) -> list[Rule]:
    """Rules of the last norm and of a layer's `norms`, by their names in a checkpoint."""
    layer = "model.layers.*"
    names = {f"{layer}.{old}": f"{layer}.{new}" for old, new in norms.items()}
    return renamed({**names, "model.norm": "model.norm"}, transform=plus_one)


class GemmaForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2024."""

    rules = stored_minus_one(_TWO_NORMS)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        config = facts.hf_config
        if config["hidden_act"] == "gelu":  # an old spelling, by which the other form is meant
            config = {**config, "hidden_act": "gelu_pytorch_tanh"}
        return gemma_spec(replace(facts, hf_config=config))


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2024: soft caps, norms around each block, and windows in every other layer."""

    rules = stored_minus_one(FOUR_NORMS)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_layers(capped_spec(facts), {}, norms="both")


class VaultGemmaForCausalLM(DecoderForCausalLM):
    """Gemma 2 with norms before blocks alone (Sinha et al., 2025)."""

    rules = stored_minus_one(
        {
            "input_layernorm": "input_layernorm",
            "pre_feedforward_layernorm": "post_attention_layernorm",
        }
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return capped_spec(facts)


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
    plain = biased_spec(facts)
    return replace(
        plain,
        norm=NormSpec(eps=plain.norm.eps, in_float32=True),
        embedding_scale=facts.hidden_size**0.5,
    )


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2025."""

    rules = stored_minus_one(
        FOUR_NORMS | {name: name for name in ("self_attn.q_norm", "self_attn.k_norm")}
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = capped_spec(facts)
        names = {True: "sliding_attention", False: "full_attention"}
        rotaries = [rotary_settings(facts, names[is_local]) for is_local in facts.local_layers]
        return with_layers(with_rotaries(plain, rotaries), {"qk_norm": plain.norm}, norms="both")
