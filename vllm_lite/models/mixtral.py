"""Mixtral (arXiv:2401.04088): Mistral whose feed-forward blocks are mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import Rule, Stack, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.mixtures import LAYERS, expert_rules, with_experts
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, decoder_spec, size


class MixtralForCausalLM(DecoderForCausalLM):
    """A token's chosen experts have weights that sum to 1."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        experts = ExpertsSpec(
            num_experts=size(facts, "num_experts"),
            intermediate_size=size(facts, "intermediate_size"),
            act=facts.hf_config.get("hidden_act", "silu"),
            routing=Routing(top_k=size(facts, "num_experts_per_tok")),
        )
        return with_experts(decoder_spec(facts), experts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule | Stack]:
        width, old = size(facts, "intermediate_size"), f"{LAYERS}.block_sparse_moe"
        return [
            *gguf_pairs(facts),
            *expert_rules(width),
            *expert_rules(width, old),
            *renamed({f"{old}.gate": f"{LAYERS}.mlp.gate"}),
        ]
