"""EXAONE 4: norms after the blocks; beside layers with windows, the others are not rotated."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.olmo import norms_after
from vllm_lite.models.spec import (
    DecoderSpec,
    decoder_spec,
    rotary_settings,
    with_layers,
    with_rotaries,
)


class Exaone4ForCausalLM(DecoderForCausalLM):
    """LG AI Research, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = with_layers(decoder_spec(facts, has_qk_norm=True), {}, norms="after")
        if not facts.hf_config.get("sliding_window"):
            return spec
        rotary = rotary_settings(facts)
        return with_rotaries(
            spec, [rotary if is_local else None for is_local in facts.local_layers]
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        return norms_after()
