"""Command's mixtures of experts: Cohere 2's attention; the first layers may have wider MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.cohere import CohereForCausalLM
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
    positive,
    rotary_settings,
    size,
    with_rotaries,
)


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
        rotary = replace(rotary_settings(facts), is_interleaved=True)
        rotaries = [
            rotary if is_local or (turns_dense and not is_sparse(number)) else None
            for number, is_local in enumerate(facts.local_layers)
        ]
        return with_experts(with_rotaries(spec, rotaries), _experts(facts), is_sparse)

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
