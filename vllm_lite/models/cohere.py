"""Command R, R7B and A: both blocks read one layer norm; neighbours are rotated as pairs."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import (
    DecoderSpec,
    decoder_spec,
    positive,
    rotary_settings,
    with_layers,
    with_rotaries,
)


class CohereForCausalLM(DecoderForCausalLM):
    """Command R; the larger model normalises each head by a weight of its own."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        norm = NormSpec(kind="layer", eps=positive(facts, "layer_norm_eps", 1e-5), in_float32=True)
        plain = replace(
            decoder_spec(facts, qkv_bias=bias, output_bias=bias),
            norm=norm,
            logit_scale=positive(facts, "logit_scale", 0.0625),
        )
        attention = {
            "rotary": replace(rotary_settings(facts), is_interleaved=True),
            "qk_norm": norm if facts.hf_config.get("use_qk_norm") else None,
            "qk_norm_weight": "by head",
        }
        return with_layers(plain, attention, parallel="one norm")


class Cohere2ForCausalLM(CohereForCausalLM):
    """Windows in three of four layers; the others are not rotated."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = CohereForCausalLM.spec(facts)
        rotary = replace(rotary_settings(facts), is_interleaved=True)
        return with_rotaries(
            spec, [rotary if is_local else None for is_local in facts.local_layers]
        )
