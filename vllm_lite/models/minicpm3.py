"""MiniCPM3: MiniCPM with latent attention, whose keys are rotated by halves."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.granite import MiniCPMForCausalLM
from vllm_lite.models.latent_attention import with_latents
from vllm_lite.models.spec import DecoderSpec


class MiniCPM3ForCausalLM(DecoderForCausalLM):
    """OpenBMB, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_latents(MiniCPMForCausalLM.spec(facts), facts)
