"""Qwen2-MoE and Qwen3-MoE: mixtures of experts, in all or some layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import MLP, expert_rules, renamed_mlp, routed_experts, with_experts
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, biased_spec, decoder_spec, size


class Qwen2MoeForCausalLM(DecoderForCausalLM):
    """Qwen2's attention, with biases of queries, keys and values."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        dense = decoder_spec(facts, qkv_bias=bool(facts.hf_config.get("qkv_bias", True)))
        return with_experts(dense, experts_and_shared(facts), every_nth_layer(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return qwen_rules(facts)


def experts_and_shared(facts: ModelFacts) -> ExpertsSpec:
    """Experts beside an MLP that a gate scales, as in Qwen2-MoE and its successors."""
    shared = MLPSpec(
        intermediate_size=size(facts, "shared_expert_intermediate_size"),
        act=facts.hf_config.get("hidden_act", "silu"),
    )
    return routed_experts(facts, shared=shared, shared_is_gated=True)


def qwen_rules(facts: ModelFacts) -> list[AnyRule]:
    """The names of experts and of the MLP beside them."""
    return [
        *expert_rules(size(facts, "moe_intermediate_size")),
        *renamed_mlp(f"{MLP}.shared_expert", f"{MLP}.shared_experts"),
    ]


def every_nth_layer(facts: ModelFacts) -> Callable[[int], bool]:
    """Which layers have experts: every decoder_sparse_step-th but mlp_only_layers."""
    period = size(facts, "decoder_sparse_step")
    dense = facts.hf_config.get("mlp_only_layers") or ()
    return lambda layer: (layer + 1) % period == 0 and layer not in dense


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3's attention and Qwen2-MoE's experts, without one for every token."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        dense = biased_spec(facts, has_qk_norm=True)
        if not facts.hf_config.get("num_experts"):
            return dense
        return with_experts(dense, routed_experts(facts), every_nth_layer(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return expert_rules(size(facts, "moe_intermediate_size"))
