"""Granite's mixtures of experts, with or without an MLP for every token beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, fused, renamed, stacked_experts
from vllm_lite.models.granite import GraniteForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.mixtures import (
    LAYERS,
    MLP,
    expert_rules,
    expert_size,
    routed_experts,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, size


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """IBM, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_experts(GraniteForCausalLM.spec(facts), granite_experts(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*gguf_pairs(facts), *granite_rules(facts)]


def granite_experts(facts: ModelFacts) -> ExpertsSpec:
    """Experts whose weights are the softmax of the chosen logits, and the MLP beside them."""
    routed = routed_experts(facts, Routing(top_k=size(facts, "num_experts_per_tok")))
    if not facts.hf_config.get("shared_intermediate_size"):
        return routed
    width = size(facts, "shared_intermediate_size")
    return replace(routed, shared=MLPSpec(intermediate_size=width, act=routed.act))


def granite_rules(facts: ModelFacts) -> list[AnyRule]:
    """Granite's names: experts in one tensor, gates and factors as one matrix."""
    width, old = expert_size(facts), f"{LAYERS}.block_sparse_moe"
    shared = facts.hf_config.get("shared_intermediate_size") or 0
    sizes = {"gate_proj": shared, "up_proj": shared}
    stored = ("input_linear.weight", "output_linear.weight")
    return [
        *expert_rules(width, old),
        *stacked_experts(old, f"{MLP}.experts.*", width, suffixes=stored),
        fused(f"{LAYERS}.shared_mlp.input_linear", f"{MLP}.shared_experts", sizes),
        *renamed(
            {
                f"{old}.router": f"{MLP}.gate",
                f"{old}.router.layer": f"{MLP}.gate",
                f"{LAYERS}.shared_mlp.output_linear": f"{MLP}.shared_experts.down_proj",
            }
        ),
    ]
