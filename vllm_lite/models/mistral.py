"""Mistral and Ministral: Llama without biases, with sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.rotary import QueryScaling
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.spec import DecoderSpec, decoder_spec, rotary_settings, with_layers


class MistralForCausalLM(DecoderForCausalLM):
    """Llama with windows, in every layer or in those that layer_types names (Ministral)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        return gguf_pairs(facts)


class Ministral3ForCausalLM(MistralForCausalLM):
    """Queries grow with their positions, beyond the length of the first training."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec, rope = decoder_spec(facts), rotary_settings(facts)
        if not rope.parameters.get("llama_4_scaling_beta"):
            return spec
        scaling = QueryScaling(
            strength=rope.number("llama_4_scaling_beta"),
            period=rope.number("original_max_position_embeddings"),
        )
        return with_layers(spec, {"query_scaling": scaling})
