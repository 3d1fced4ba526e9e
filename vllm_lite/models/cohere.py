"""Command R, R7B and A: both blocks read one layer norm; neighbours are rotated as pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import (
    check_field,
    expert_rules,
    expert_size,
    routed_experts,
    shared_mlp,
    sparse_layers,
    with_experts,
)
from vllm_lite.models.spec import (
    DecoderSpec,
    ExpertsSpec,
    MLPSpec,
    biased_spec,
    positive,
    rotary_settings,
    rotated_where,
    size,
    with_layers,
)


class CohereForCausalLM(DecoderForCausalLM):
    """Command R; the larger model normalises each head by a weight of its own."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        norm = NormSpec(kind="layer", eps=positive(facts, "layer_norm_eps", 1e-5), in_float32=True)
        plain = replace(
            biased_spec(facts),
            norm=norm,
            logit_scale=positive(facts, "logit_scale", 0.0625),
        )
        attention = {
            "rotary": replace(rotary_settings(facts), is_interleaved=True),
            "qk_norm": norm if facts.hf_config.get("use_qk_norm") else None,
            "qk_norm_weight": "by head",
        }
        return with_layers(plain, attention, parallel="one norm")


class Cohere2ForCausalLM(CohereForCausalLM):
    """Windows in three of four layers; the others are not rotated."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return rotated_where(CohereForCausalLM.spec(facts), facts.local_layers)


class Cohere2MoeForCausalLM(CohereForCausalLM):
    """Cohere, 2026."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        given = {name: value for name, value in facts.hf_config.items() if value is not None}
        facts = replace(facts, hf_config=given)
        spec = CohereForCausalLM.spec(facts)
        if "rms_norm_eps" in given:
            spec = replace(spec, norm=NormSpec(eps=positive(facts, "rms_norm_eps", 1e-5)))
        is_sparse = sparse_layers(facts)
        if "prefix_dense_intermediate_size" in given:
            width = size(facts, "prefix_dense_intermediate_size")
            wide = MLPSpec(intermediate_size=width, act=given.get("hidden_act", "silu"))
            spec = replace(spec, layers=tuple(replace(layer, ffn=wide) for layer in spec.layers))
        turns_dense = given.get("prefix_dense_sliding_window_pattern") == 1
        is_rotated = (
            is_local or (turns_dense and not is_sparse(number))
            for number, is_local in enumerate(facts.local_layers)
        )
        return with_experts(rotated_where(spec, is_rotated), _experts(facts), is_sparse)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return expert_rules(expert_size(facts))


def _experts(facts: ModelFacts) -> ExpertsSpec:
    hf = facts.hf_config
    scores, mix = hf["expert_selection_fn"], hf["shared_expert_combination_strategy"]
    check_field(facts, "expert_selection_fn", "softmax", "sigmoid")
    check_field(facts, "shared_expert_combination_strategy", "sum", "average")
    shared = shared_mlp(facts, "num_shared_experts")
    share = 0.5 if shared is not None and mix == "average" else 1.0
    routing = Routing(
        top_k=size(facts, "num_experts_per_tok"),
        scores=scores,
        is_renormalized=scores == "softmax" or bool(hf.get("norm_topk_prob")),
        scale=share,
    )
    return routed_experts(facts, routing, shared=shared, shared_scale=share)
