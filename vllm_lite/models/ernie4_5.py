"""ERNIE 4.5, dense: Llama that rotates neighbours as pairs."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec, rotary_settings, with_layers


class Ernie4_5ForCausalLM(DecoderForCausalLM):
    """Baidu, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("use_bias"))
        spec = decoder_spec(facts, qkv_bias=bias, output_bias=bias, mlp_bias=bias)
        return with_layers(spec, {"rotary": replace(rotary_settings(facts), is_interleaved=True)})
