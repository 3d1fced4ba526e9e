"""Phi-1, 1.5 and 2: both blocks side by side after one norm, a part of each head rotated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, rotary_settings, with_layers


class PhiForCausalLM(DecoderForCausalLM):
    """Li et al., 2023."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = gpt_spec(facts, "layer_norm_eps")
        mixer = {
            "num_kv_heads": facts.num_kv_heads,
            "rotary": rotary_settings(facts),
            "qk_norm": plain.norm if facts.hf_config["qk_layernorm"] else None,
        }
        return replace(with_layers(plain, mixer, parallel="one norm"), head_bias=True)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        return renamed(
            {
                "model.final_layernorm": "model.norm",
                f"{layer}.self_attn.dense": f"{layer}.self_attn.o_proj",
                f"{layer}.self_attn.q_layernorm": f"{layer}.self_attn.q_norm",
                f"{layer}.self_attn.k_layernorm": f"{layer}.self_attn.k_norm",
                f"{layer}.mlp.fc1": f"{layer}.mlp.up_proj",
                f"{layer}.mlp.fc2": f"{layer}.mlp.down_proj",
            }
        )
