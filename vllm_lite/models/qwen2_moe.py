"""Qwen2-MoE: a mixture of experts beside an MLP that every token passes, scaled by a gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import Rule, Stack, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import LAYERS, expert_rules, with_experts
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, decoder_spec, size


class Qwen2MoeForCausalLM(DecoderForCausalLM):
    """Qwen2's attention, with biases of queries, keys and values."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        dense = decoder_spec(facts, qkv_bias=bool(facts.hf_config.get("qkv_bias", True)))
        width = size(facts, "shared_expert_intermediate_size")
        routed = routed_experts(facts)
        experts = replace(
            routed,
            shared=MLPSpec(intermediate_size=width, act=routed.act),
            shared_is_gated=True,
        )
        return with_experts(dense, experts, sparse_layers(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule | Stack]:
        names = ("gate_proj", "up_proj", "down_proj")
        mlp = f"{LAYERS}.mlp"
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            *renamed({f"{mlp}.shared_expert.{n}": f"{mlp}.shared_experts.{n}" for n in names}),
        ]


def routed_experts(facts: ModelFacts) -> ExpertsSpec:
    """The experts of Qwen's mixtures; their weights sum to 1 where norm_topk_prob says so."""
    return ExpertsSpec(
        num_experts=size(facts, "num_experts"),
        intermediate_size=size(facts, "moe_intermediate_size"),
        act=facts.hf_config.get("hidden_act", "silu"),
        routing=Routing(
            top_k=size(facts, "num_experts_per_tok"),
            is_renormalized=bool(facts.hf_config.get("norm_topk_prob")),
        ),
    )


def sparse_layers(facts: ModelFacts) -> Callable[[int], bool]:
    """Which layers have experts: every decoder_sparse_step-th but mlp_only_layers."""
    period = size(facts, "decoder_sparse_step")
    dense = facts.hf_config.get("mlp_only_layers") or ()
    return lambda layer: (layer + 1) % period == 0 and layer not in dense
