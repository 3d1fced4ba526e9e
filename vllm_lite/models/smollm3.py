"""SmolLM3: Llama with layers that are not rotated."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.spec import DecoderSpec, rotary_settings, size, with_rotaries


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """One layer in so many, or those marked 0 by no_rope_layers, attends without positions."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        is_rotated = facts.hf_config.get("no_rope_layers")
        if is_rotated is None:
            period = size(facts, "no_rope_layer_interval")
            is_rotated = [(i + 1) % period for i in range(facts.num_layers)]
        if not isinstance(is_rotated, list) or len(is_rotated) < facts.num_layers:
            raise CheckpointError(
                f"{facts.path}: no_rope_layers is not a list of {facts.num_layers} numbers"
            )
        rotary = rotary_settings(facts)
        rotaries = [rotary if here else None for here in is_rotated[: facts.num_layers]]
        return with_rotaries(LlamaForCausalLM.spec(facts), rotaries)
