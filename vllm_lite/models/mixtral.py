"""Mixtral, Phi-3.5-MoE and MiniMax-M2: experts that are stored as Mixtral's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Alias, AnyRule, Part, Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM, gguf_pairs
from vllm_lite.models.mixtures import (
    CHOICE_BIAS,
    LAYERS,
    MLP,
    biased_routing,
    expert_rules,
    expert_size,
    routed_experts,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, decoder_spec, positive, size, with_layers


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


class PhimoeForCausalLM(DecoderForCausalLM):
    """An expert's weight is its share among those whose logits are near its own (SparseMixer)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        if hf["num_experts_per_tok"] != 2:
            raise facts.error(f"num_experts_per_tok is {hf['num_experts_per_tok']!r}, not 2")
        routing = Routing(
            top_k=2,
            scores="sparsemixer",
            is_renormalized=False,
            tolerance=2 * positive(facts, "router_jitter_noise", 0.01),
        )
        dense = replace(
            LlamaForCausalLM.spec(facts),
            norm=NormSpec(kind="layer", eps=positive(facts, "rms_norm_eps", 1e-5), bias=True),
            head_bias=bool(hf["lm_head_bias"]),
        )
        return with_experts(dense, routed_experts(facts, routing))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *mixtral_rules(facts),
            Rule(f"{MLP}.router", (Part(f"{MLP}.gate"),), is_alternative=True),
        ]


class MiniMaxM2ForCausalLM(DecoderForCausalLM):
    """MiniMax, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = decoder_spec(facts)
        dense = with_layers(plain, {"qk_norm": plain.norm, "qk_norm_weight": "one row"})
        routing = replace(biased_routing(facts), is_renormalized=True, epsilon=0.0)
        return with_experts(dense, routed_experts(facts, routing, has_choice_bias=True))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *mixtral_rules(facts),
            Alias(f"{LAYERS}.block_sparse_moe.{CHOICE_BIAS}", f"{MLP}.gate.{CHOICE_BIAS}"),
            Alias(f"{MLP}.{CHOICE_BIAS}", f"{MLP}.gate.{CHOICE_BIAS}"),
        ]
