"""Gemma 3, text: norms around each block, windows in five of six layers, two rotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Rule, plus_one, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import (
    AttentionSpec,
    DecoderSpec,
    decoder_spec,
    positive,
    rotary_settings,
)


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        plain = decoder_spec(facts, qkv_bias=bias, output_bias=bias)
        norm = NormSpec(eps=plain.norm.eps, in_float32=True)
        scale = positive(facts, "query_pre_attn_scalar", 256) ** -0.5
        layers = []
        for layer in plain.layers:
            assert isinstance(layer.mixer, AttentionSpec)
            kind = "full_attention" if layer.mixer.window is None else "sliding_attention"
            mixer = replace(
                layer.mixer, scale=scale, rotary=rotary_settings(facts, kind), qk_norm=norm
            )
            layers.append(replace(layer, mixer=mixer, norms="both"))
        return replace(
            plain, norm=norm, layers=tuple(layers), embedding_scale=facts.hidden_size**0.5
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        names = {
            "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "mixer_output_norm",
            "pre_feedforward_layernorm": "post_attention_layernorm",
            "post_feedforward_layernorm": "ffn_output_norm",
            "self_attn.q_norm": "self_attn.q_norm",
            "self_attn.k_norm": "self_attn.k_norm",
        }
        norms = {f"{layer}.{old}": f"{layer}.{new}" for old, new in names.items()}
        return renamed({**norms, "model.norm": "model.norm"}, transform=plus_one)
