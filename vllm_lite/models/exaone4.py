"""EXAONE 4, dense and with experts: beside layers with windows, the others are not rotated."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Alias, AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import CHOICE_BIAS, MLP, expert_rules, with_biased_experts
from vllm_lite.models.olmo import norms_after
from vllm_lite.models.spec import DecoderSpec, decoder_spec, rotated_where, size, with_layers


class Exaone4ForCausalLM(DecoderForCausalLM):
    """LG AI Research, 2025: norms after the blocks."""

    rules = norms_after()

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = with_layers(decoder_spec(facts, has_qk_norm=True), {}, norms="after")
        if not facts.hf_config.get("sliding_window"):
            return spec
        return rotated_where(spec, facts.local_layers)


class ExaoneMoeForCausalLM(DecoderForCausalLM):
    """LG AI Research, 2025: experts routed as DeepSeek-V3's."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = with_biased_experts(facts, decoder_spec(facts, has_qk_norm=True))
        if not facts.hf_config.get("sliding_window"):
            return spec
        return rotated_where(spec, facts.local_layers)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            Alias(f"{MLP}.{CHOICE_BIAS}", f"{MLP}.gate.{CHOICE_BIAS}"),
        ]
