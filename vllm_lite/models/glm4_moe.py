"""GLM-4.5, EXAONE MoE and Hunyuan 3: experts routed as DeepSeek-V3's, ordinary attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Alias, AnyRule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import (
    CHOICE_BIAS,
    FILE_NORMS,
    MLP,
    biased_routing,
    expert_rules,
    renamed_mlp,
    routed_experts,
    shared_mlp,
    sparse_layers,
    with_experts,
)
from vllm_lite.models.spec import (
    DecoderSpec,
    decoder_spec,
    positive,
    rotary_settings,
    size,
    with_rotaries,
)


class Glm4MoeForCausalLM(DecoderForCausalLM):
    """Zhipu AI, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        is_normed = bool(facts.hf_config.get("use_qk_norm"))
        dense = decoder_spec(facts, qkv_bias=bias, has_qk_norm=is_normed)
        return with_biased_experts(facts, dense)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*FILE_NORMS, *expert_rules(size(facts, "moe_intermediate_size"))]


class ExaoneMoeForCausalLM(DecoderForCausalLM):
    """LG AI Research, 2025: layers without a window are not rotated where others have one."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = with_biased_experts(facts, decoder_spec(facts, has_qk_norm=True))
        if not facts.hf_config.get("sliding_window"):
            return spec
        rotary = rotary_settings(facts)
        return with_rotaries(
            spec, [rotary if is_local else None for is_local in facts.local_layers]
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            Alias(f"{MLP}.{CHOICE_BIAS}", f"{MLP}.gate.{CHOICE_BIAS}"),
        ]


class HYV3ForCausalLM(DecoderForCausalLM):
    """Tencent, 2026."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        bias, mlp_bias = bool(hf.get("attention_bias")), bool(hf.get("mlp_bias"))
        dense = decoder_spec(
            facts, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias, has_qk_norm=True
        )
        scale = positive(facts, "router_scaling_factor", 1.0)
        routing = replace(biased_routing(facts), is_renormalized=True, scale=scale)
        shared = shared_mlp(facts, "num_shared_experts")
        if shared is not None:
            shared = replace(shared, bias=mlp_bias)
        experts = routed_experts(facts, routing, has_choice_bias=True, shared=shared)
        return with_experts(dense, experts, sparse_layers(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            *renamed_mlp(f"{MLP}.shared_mlp", f"{MLP}.shared_experts"),
            *renamed({f"{MLP}.router.gate": f"{MLP}.gate"}),
            Alias(f"{MLP}.expert_bias", f"{MLP}.gate.{CHOICE_BIAS}"),
        ]


def with_biased_experts(facts: ModelFacts, dense: DecoderSpec) -> DecoderSpec:
    """`dense` with experts routed as DeepSeek-V3's, and shared ones, after the first layers."""
    shared = shared_mlp(facts, "num_shared_experts")
    experts = routed_experts(facts, biased_routing(facts), has_choice_bias=True, shared=shared)
    return with_experts(dense, experts, sparse_layers(facts))
