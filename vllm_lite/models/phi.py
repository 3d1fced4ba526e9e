"""Phi: both blocks side by side after one norm; from Phi-3 on Llama with fused projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, rotary_settings, size, with_layers

_LAYER = "model.layers.*"


class PhiForCausalLM(DecoderForCausalLM):
    """Li et al., 2023."""

    rules = renamed(
        {
            "model.final_layernorm": "model.norm",
            f"{_LAYER}.self_attn.dense": f"{_LAYER}.self_attn.o_proj",
            f"{_LAYER}.self_attn.q_layernorm": f"{_LAYER}.self_attn.q_norm",
            f"{_LAYER}.self_attn.k_layernorm": f"{_LAYER}.self_attn.k_norm",
            f"{_LAYER}.mlp.fc1": f"{_LAYER}.mlp.up_proj",
            f"{_LAYER}.mlp.fc2": f"{_LAYER}.mlp.down_proj",
        }
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = gpt_spec(facts, "layer_norm_eps")
        mixer = {
            "num_kv_heads": facts.num_kv_heads,
            "rotary": rotary_settings(facts),
            "qk_norm": plain.norm if facts.hf_config["qk_layernorm"] else None,
        }
        return replace(with_layers(plain, mixer, parallel="one norm"), head_bias=True)


class Phi3ForCausalLM(DecoderForCausalLM):
    """Llama without biases; qkv_proj and gate_up_proj are stored whole, in GGUF files too."""

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        query, key = (n * facts.head_size for n in (facts.num_heads, facts.num_kv_heads))
        up = size(facts, "intermediate_size")
        qkv = {"q_proj": query, "k_proj": key, "v_proj": key}
        gate_up = {"gate_proj": up, "up_proj": up}
        is_gguf = facts.format == "gguf"
        return (
            fused(f"{_LAYER}.self_attn.qkv_proj", f"{_LAYER}.self_attn", qkv),
            fused(
                "blk.*.ffn_up" if is_gguf else f"{_LAYER}.mlp.gate_up_proj",
                f"{_LAYER}.mlp",
                gate_up,
            ),
        )
