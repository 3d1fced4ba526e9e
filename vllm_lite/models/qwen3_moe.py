"""Qwen3-MoE: Qwen3 whose feed-forward blocks are mixtures of experts, in all or some layers."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import expert_rules, routed_experts, with_experts
from vllm_lite.models.qwen2_moe import every_nth_layer
from vllm_lite.models.spec import DecoderSpec, decoder_spec, size


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3's attention and Qwen2-MoE's experts, without one for every token."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        dense = decoder_spec(facts, qkv_bias=bias, output_bias=bias, has_qk_norm=True)
        if not facts.hf_config.get("num_experts"):
            return dense
        return with_experts(dense, routed_experts(facts), every_nth_layer(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return expert_rules(size(facts, "moe_intermediate_size"))
