"""SmolLM3: Llama with layers that are not rotated."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.family_config import rotated_layers
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.spec import DecoderSpec, rotary_settings, with_rotaries


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """One layer in so many, or those marked 0 by no_rope_layers, attends without positions."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        rotary = rotary_settings(facts)
        is_rotated = rotated_layers(facts.path, facts.hf_config, facts.num_layers)
        rotaries = [rotary if here else None for here in is_rotated]
        return with_rotaries(LlamaForCausalLM.spec(facts), rotaries)
