"""MiniMax-M2: logistic scores with a bias to choose by; all heads of queries normalised as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Alias, AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtral import mixtral_rules
from vllm_lite.models.mixtures import (
    CHOICE_BIAS,
    LAYERS,
    MLP,
    biased_routing,
    routed_experts,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, decoder_spec, with_layers


class MiniMaxM2ForCausalLM(DecoderForCausalLM):
    """MiniMax, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = decoder_spec(facts)
        dense = with_layers(plain, {"qk_norm": plain.norm, "qk_norm_weight": "one row"})
        routing = replace(biased_routing(facts), is_renormalized=True, epsilon=0.0)
        return with_experts(dense, routed_experts(facts, routing, has_choice_bias=True))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *mixtral_rules(facts),
            Alias(f"{LAYERS}.block_sparse_moe.{CHOICE_BIAS}", f"{MLP}.gate.{CHOICE_BIAS}"),
            Alias(f"{MLP}.{CHOICE_BIAS}", f"{MLP}.gate.{CHOICE_BIAS}"),
        ]
