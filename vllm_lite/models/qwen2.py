"""Qwen2 and Qwen2.5: Llama with biased queries, keys and values, and windows in some layers."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Llama with a qkv bias, which its configuration never states."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts, qkv_bias=True)
