"""OLMoE (arXiv:2409.02060) and FlexOlmo: experts in every layer, heads normalised as one row."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import expert_rules, expert_size, routed_experts, with_experts
from vllm_lite.models.olmo import Olmo2ForCausalLM, norms_after
from vllm_lite.models.spec import DecoderSpec, decoder_spec, with_layers


class OlmoeForCausalLM(DecoderForCausalLM):
    """Allen AI, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        plain = decoder_spec(facts, qkv_bias=bias, output_bias=bias)
        dense = with_layers(plain, {"qk_norm": plain.norm, "qk_norm_weight": "one row"})
        return with_experts(dense, routed_experts(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return expert_rules(expert_size(facts))


class FlexOlmoForCausalLM(DecoderForCausalLM):
    """OLMo 2 with OLMoE's experts (Shi et al., 2025)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_experts(Olmo2ForCausalLM.spec(facts), routed_experts(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*norms_after(), *expert_rules(expert_size(facts))]
