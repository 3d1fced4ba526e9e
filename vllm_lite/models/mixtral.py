"""Mixtral (arXiv:2401.04088): Mistral whose feed-forward blocks are mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.mixtures import (
    LAYERS,
    MLP,
    expert_rules,
    expert_size,
    routed_experts,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, decoder_spec, size


class MixtralForCausalLM(DecoderForCausalLM):
    """A token's chosen experts have weights that sum to 1."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        routing = Routing(top_k=size(facts, "num_experts_per_tok"))
        return with_experts(decoder_spec(facts), routed_experts(facts, routing))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*gguf_pairs(facts), *mixtral_rules(facts)]


def mixtral_rules(facts: ModelFacts) -> list[AnyRule]:
    """The names of Mixtral's experts and router, as in its own files or after transformers 5."""
    width, old = expert_size(facts), f"{LAYERS}.block_sparse_moe"
    return [
        *expert_rules(width),
        *expert_rules(width, old),
        *renamed({f"{old}.gate": f"{MLP}.gate"}),
    ]
