"""StarCoder2: layer norms and biases around Llama's attention, an MLP without a gate."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import MLP
from vllm_lite.models.spec import DecoderSpec, decoder_spec, mlp_spec, positive, with_layers


class Starcoder2ForCausalLM(DecoderForCausalLM):
    """Lozhkov et al., 2024."""

    rules = renamed({f"{MLP}.c_fc": f"{MLP}.up_proj", f"{MLP}.c_proj": f"{MLP}.down_proj"})

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config["use_bias"])
        plain = decoder_spec(facts, qkv_bias=bias, output_bias=bias)
        ffn = mlp_spec(facts, is_gated=False, bias=bias)
        norm = NormSpec(kind="layer", eps=positive(facts, "norm_epsilon", 1e-5), bias=True)
        return replace(with_layers(plain, {}, ffn=ffn), norm=norm)
