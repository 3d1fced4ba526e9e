"""Gemma 3, text: norms around each block, windows in five of six layers, two rotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.gemma import FOUR_NORMS, gemma_spec, stored_minus_one
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, positive, rotary_settings


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = gemma_spec(facts)
        scale = positive(facts, "query_pre_attn_scalar", 256) ** -0.5
        layers = []
        for layer, is_local in zip(plain.layers, facts.local_layers, strict=True):
            assert isinstance(layer.mixer, AttentionSpec)
            kind = "sliding_attention" if is_local else "full_attention"
            mixer = replace(
                layer.mixer, scale=scale, rotary=rotary_settings(facts, kind), qk_norm=plain.norm
            )
            layers.append(replace(layer, mixer=mixer, norms="both"))
        return replace(plain, layers=tuple(layers))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        head_norms = ("self_attn.q_norm", "self_attn.k_norm")
        return stored_minus_one(FOUR_NORMS | {name: name for name in head_norms})
