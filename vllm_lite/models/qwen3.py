"""Qwen3: Llama with normalised queries and keys, and windows in some layers."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec, windows_by_layer


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Llama with qk_norm; its biases follow attention_bias."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return replace(
            decoder_spec(facts),
            sliding_windows=windows_by_layer(facts),
            qk_norm=True,
            mlp_bias=False,
        )
