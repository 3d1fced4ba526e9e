"""Mistral: Llama without biases, every layer with the same sliding window where there is one."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec


class MistralForCausalLM(DecoderForCausalLM):
    """Llama with a window (Jiang et al., 2023)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        # In a config.json only null switches off the window that its class has by default.
        default = 4096 if facts.format == "hf" else None
        window = facts.hf_config.get("sliding_window", default)
        return replace(
            decoder_spec(facts),
            sliding_windows=(window,) * facts.num_layers,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
        )
