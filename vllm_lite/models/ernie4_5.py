"""ERNIE 4.5: Llama that rotates neighbours as pairs, dense or with mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, Stack
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import (
    CHOICE_BIAS,
    MLP,
    expert_rules,
    routed_experts,
    shared_mlp,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, decoder_spec, rotary_settings, size, with_layers


class Ernie4_5ForCausalLM(DecoderForCausalLM):
    """Baidu, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("use_bias"))
        spec = decoder_spec(facts, qkv_bias=bias, output_bias=bias, mlp_bias=bias)
        return with_layers(spec, {"rotary": replace(rotary_settings(facts), is_interleaved=True)})


class Ernie4_5_MoeForCausalLM(Ernie4_5ForCausalLM):
    """Experts in every moe_layer_interval-th layer of a range."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        routing = Routing(
            top_k=size(facts, "num_experts_per_tok"), epsilon=float(hf["moe_norm_min"])
        )
        shared = shared_mlp(facts, "num_shared_experts")
        experts = routed_experts(facts, routing, has_choice_bias=True, shared=shared)
        first, last = hf["moe_layer_start_index"], hf.get("moe_layer_end_index", -1)
        if last == -1:
            last = facts.num_layers - 1
        period = size(facts, "moe_layer_interval")
        return with_experts(
            Ernie4_5ForCausalLM.spec(facts),
            experts,
            lambda layer: first <= layer <= last and (layer + 1) % period == 0,
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            # One row of biases, for experts of one modality.
            Stack(f"{MLP}.moe_statics.{CHOICE_BIAS}", f"{MLP}.moe_statics.*.{CHOICE_BIAS}"),
            Rule(f"{MLP}.moe_statics.*", (Part(f"{MLP}.gate"),), is_alternative=True),
        ]
