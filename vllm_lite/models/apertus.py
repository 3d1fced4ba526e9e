"""Apertus: Llama with normalised queries and keys, and an MLP without a gate."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.nemotron import without_gates
from vllm_lite.models.spec import DecoderSpec, decoder_spec


class ApertusForCausalLM(DecoderForCausalLM):
    """Apertus Team, 2025; its activation is xIELU."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        plain = decoder_spec(facts, qkv_bias=bias, output_bias=bias, has_qk_norm=True)
        return without_gates(facts, plain)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        return renamed(
            {
                f"{layer}.attention_layernorm": f"{layer}.input_layernorm",
                f"{layer}.feedforward_layernorm": f"{layer}.post_attention_layernorm",
            }
        )
