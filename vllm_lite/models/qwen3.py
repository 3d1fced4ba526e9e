"""Qwen3: Llama with normalised queries and keys, and windows in some layers."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, biased_spec


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Llama with qk_norm; its biases follow attention_bias."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return biased_spec(facts, has_qk_norm=True)
