"""Mistral: Llama without biases, with sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.spec import DecoderSpec, decoder_spec


class MistralForCausalLM(DecoderForCausalLM):
    """Llama with windows, in every layer or in those that layer_types names (Ministral)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        return gguf_pairs(facts)
