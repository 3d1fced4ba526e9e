"""Qwen3: Llama with normalised queries and keys, and windows in some layers."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Llama with qk_norm; its biases follow attention_bias."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        return decoder_spec(facts, qkv_bias=bias, output_bias=bias, has_qk_norm=True)
