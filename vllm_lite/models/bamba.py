"""Bamba: layers of Mamba 2, and some of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import hybrid_mamba2
from vllm_lite.models.mamba2 import mamba2_rules
from vllm_lite.models.spec import DecoderSpec, decoder_spec


class BambaForCausalLM(DecoderForCausalLM):
    """IBM, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf, mixer = facts.hf_config, hybrid_mamba2(facts)
        bias, attending = bool(hf.get("attention_bias")), hf.get("attn_layer_indices") or ()
        plain = decoder_spec(
            facts, qkv_bias=bias, output_bias=bias, mlp_bias=bool(hf.get("mlp_bias"))
        )
        layers = (
            layer if i in attending else replace(layer, mixer=mixer)
            for i, layer in enumerate(plain.layers)
        )
        return replace(plain, layers=tuple(layers))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        names = {
            "model.final_layernorm": "model.norm",
            f"{layer}.pre_ff_layernorm": f"{layer}.post_attention_layernorm",
        }
        names |= {
            f"{layer}.feed_forward.{part}_proj": f"{layer}.mlp.{part}_proj"
            for part in ("gate", "up", "down")
        }
        return *renamed(names), *mamba2_rules(
            f"{layer}.mamba", f"{layer}.mixer", hybrid_mamba2(facts)
        )
