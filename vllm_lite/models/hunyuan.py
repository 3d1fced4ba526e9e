"""Hunyuan: Llama whose queries and keys are normalised after their rotation; perhaps experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.rotary import RotarySettings
from vllm_lite.loader.weight_rules import Alias, AnyRule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.mixtures import (
    CHOICE_BIAS,
    MLP,
    biased_routing,
    expert_rules,
    renamed_mlp,
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
    size,
    with_layers,
)

_ATTENTION = "model.layers.*.self_attn"


class HunYuanDenseV1ForCausalLM(DecoderForCausalLM):
    """Tencent, 2025."""

    rules = renamed(
        {
            f"{_ATTENTION}.query_layernorm": f"{_ATTENTION}.q_norm",
            f"{_ATTENTION}.key_layernorm": f"{_ATTENTION}.k_norm",
        }
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = LlamaForCausalLM.spec(facts)
        attention = {
            "rotary": hunyuan_rotary(facts),
            "qk_norm": spec.norm if facts.hf_config.get("use_qk_norm") else None,
            "is_normed_after_rotation": True,
        }
        return with_layers(spec, attention)


def hunyuan_rotary(facts: ModelFacts) -> RotarySettings:
    """The rotation, whose type is called dynamic where an `alpha` stretches the base for good."""
    rotary = rotary_settings(facts)
    alpha, size = rotary.number("alpha", 0), facts.head_size
    if rotary.parameters["rope_type"] != "dynamic" or not alpha:
        return rotary
    theta = rotary.number("rope_theta") * alpha ** (size / (size - 2))
    return replace(rotary, parameters={"rope_type": "default", "rope_theta": theta})


class HunYuanMoEV1ForCausalLM(HunYuanDenseV1ForCausalLM):
    """Hunyuan-A13B; fields of experts may be lists, with a number for each layer."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        dense = HunYuanDenseV1ForCausalLM.spec(facts)
        layers = (
            replace(layer, ffn=_experts(facts, number)) for number, layer in enumerate(dense.layers)
        )
        return replace(dense, layers=tuple(layers))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *HunYuanDenseV1ForCausalLM.weight_rules(facts),
            *expert_rules(_of_layer(facts, "moe_intermediate_size", 0)),
            *renamed_mlp(f"{MLP}.shared_mlp", f"{MLP}.shared_experts"),
            *renamed({f"{MLP}.gate.wg": f"{MLP}.gate"}),
        ]


class HYV3ForCausalLM(DecoderForCausalLM):
    """Tencent, 2026: Hunyuan 3, of another shape."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        mlp_bias = bool(facts.hf_config.get("mlp_bias"))
        dense = biased_spec(facts, mlp_bias=mlp_bias, has_qk_norm=True)
        scale = positive(facts, "router_scaling_factor", 1.0)
        routing = replace(biased_routing(facts), is_renormalized=True, scale=scale)
        shared = shared_mlp(facts, "num_shared_experts")
        if shared is not None:
            shared = replace(shared, bias=mlp_bias)
        experts = routed_experts(facts, routing, has_choice_bias=True, shared=shared)
        return with_experts(dense, experts, sparse_layers(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            *renamed_mlp(f"{MLP}.shared_mlp", f"{MLP}.shared_experts"),
            *renamed({f"{MLP}.router.gate": f"{MLP}.gate"}),
            Alias(f"{MLP}.expert_bias", f"{MLP}.gate.{CHOICE_BIAS}"),
        ]


def _experts(facts: ModelFacts, layer: int) -> ExpertsSpec:
    act = facts.hf_config.get("hidden_act", "silu")
    count = _of_layer(facts, "num_shared_expert", layer)
    shared = MLPSpec(intermediate_size=count * size(facts, "intermediate_size"), act=act)
    return ExpertsSpec(
        num_experts=_of_layer(facts, "num_experts", layer),
        intermediate_size=_of_layer(facts, "moe_intermediate_size", layer),
        act=act,
        routing=Routing(top_k=_of_layer(facts, "num_experts_per_tok", layer)),
        shared=shared,
    )


def _of_layer(facts: ModelFacts, key: str, layer: int) -> int:
    value = facts.hf_config.get(key)
    if value is None and key == "moe_intermediate_size":
        return size(facts, "intermediate_size")
    if not isinstance(value, list):
        return size(facts, key)
    if len(value) != facts.num_layers or not all(isinstance(n, int) and n > 0 for n in value):
        raise facts.error(f"{key} does not hold a positive number for each layer")
    return int(value[layer])
