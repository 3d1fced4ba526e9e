"""Hunyuan, dense: Llama whose queries and keys are normalised after their rotation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.rotary import RotarySettings
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.spec import DecoderSpec, rotary_settings, with_layers


class HunYuanDenseV1ForCausalLM(DecoderForCausalLM):
    """Tencent, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = LlamaForCausalLM.spec(facts)
        attention = {
            "rotary": hunyuan_rotary(facts),
            "qk_norm": spec.norm if facts.hf_config.get("use_qk_norm") else None,
            "is_normed_after_rotation": True,
        }
        return with_layers(spec, attention)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        attention = "model.layers.*.self_attn"
        return renamed(
            {
                f"{attention}.query_layernorm": f"{attention}.q_norm",
                f"{attention}.key_layernorm": f"{attention}.k_norm",
            }
        )


def hunyuan_rotary(facts: ModelFacts) -> RotarySettings:
    """The rotation, whose type is called dynamic where an `alpha` stretches the base for good."""
    rotary = rotary_settings(facts)
    alpha, size = rotary.number("alpha", 0), facts.head_size
    if rotary.parameters["rope_type"] != "dynamic" or not alpha:
        return rotary
    theta = rotary.number("rope_theta") * alpha ** (size / (size - 2))
    return replace(rotary, parameters={"rope_type": "default", "rope_theta": theta})
