"""Hunyuan's mixtures of experts, beside an MLP for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.hunyuan import HunYuanDenseV1ForCausalLM
from vllm_lite.models.mixtures import MLP, expert_rules, renamed_mlp
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, size


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
        raise CheckpointError(f"{facts.path}: {key} does not hold a positive number for each layer")
    return int(value[layer])
