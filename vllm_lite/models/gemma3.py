"""Gemma 3, text: norms around each block, windows in five of six layers, two rotations."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.gemma import FOUR_NORMS, capped_spec, stored_minus_one
from vllm_lite.models.spec import DecoderSpec, rotary_settings, with_layers, with_rotaries


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = capped_spec(facts)
        names = {True: "sliding_attention", False: "full_attention"}
        rotaries = [rotary_settings(facts, names[is_local]) for is_local in facts.local_layers]
        return with_layers(with_rotaries(plain, rotaries), {"qk_norm": plain.norm}, norms="both")

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        head_norms = ("self_attn.q_norm", "self_attn.k_norm")
        return stored_minus_one(FOUR_NORMS | {name: name for name in head_norms})
