"""OLMo: layer norms without weights, then norms after the blocks; OLMoE and FlexOlmo: experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule, Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.mixtures import expert_rules, expert_size, routed_experts, with_experts
from vllm_lite.models.spec import (
    DecoderSpec,
    biased_spec,
    positive,
    rotary_settings,
    with_layers,
    with_rotaries,
)


class OlmoForCausalLM(LlamaForCausalLM):
    """Groeneveld et al., 2024: no norm has parameters; projections may be clamped."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = biased_spec(facts)
        norm = NormSpec(kind="layer", eps=1e-5, has_weight=False)
        is_clipped = facts.hf_config.get("clip_qkv") is not None
        clip = positive(facts, "clip_qkv", 0) if is_clipped else None
        return with_layers(replace(plain, norm=norm), {"qkv_clip": clip})


def norms_after() -> Sequence[Rule]:
    """The names of norms after the blocks, in layers that have no others."""
    layer = "model.layers.*"
    names = (f"{layer}.post_attention_layernorm", f"{layer}.post_feedforward_layernorm")
    own = (f"{layer}.mixer_output_norm", f"{layer}.ffn_output_norm")
    return renamed(dict(zip(names, own, strict=True)))


class Olmo2ForCausalLM(DecoderForCausalLM):
    """OLMo Team, 2024: blocks' outputs are normalised, and all heads of queries and of keys."""

    rules = norms_after()

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = biased_spec(facts)
        norm = replace(plain.norm, in_float32=True)
        attention = {"qk_norm": norm, "qk_norm_weight": "one row"}
        return with_layers(replace(plain, norm=norm), attention, norms="after")


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """OLMo 2 with windows; layers that have one are rotated without scaling."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = Olmo2ForCausalLM.spec(facts)
        full, local = rotary_settings(facts), rotary_settings(facts, "sliding_attention")
        if full == local:
            theta = full.number("rope_theta")
            local = replace(full, parameters={"rope_type": "default", "rope_theta": theta})
        return with_rotaries(spec, [local if is_local else full for is_local in facts.local_layers])


class OlmoeForCausalLM(DecoderForCausalLM):
    """Allen AI, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = biased_spec(facts)
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
