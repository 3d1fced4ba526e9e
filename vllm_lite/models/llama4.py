"""Llama 4, text: attention in chunks, some layers without positions, experts in some or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_lite.config.checkpoints.family_config import rotated_layers
from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.rotary import QueryScaling
from vllm_lite.loader.weight_rules import Rule, Stack, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import (
    LAYERS,
    renamed_mlp,
    routed_experts,
    stacked_experts,
    with_experts,
)
from vllm_lite.models.spec import (
    AttentionSpec,
    DecoderSpec,
    MLPSpec,
    biased_spec,
    mlp_spec,
    positive,
    rotary_settings,
    size,
    with_layers,
)


class Llama4ForCausalLM(DecoderForCausalLM):
    """Rotated layers normalise queries and keys; the others scale queries by their positions."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        plain, act = biased_spec(facts), hf["hidden_act"]
        dense = MLPSpec(intermediate_size=size(facts, "intermediate_size_mlp"), act=act)
        plain = with_layers(plain, {"is_chunked": True}, ffn=dense)
        rotated = {
            "rotary": replace(rotary_settings(facts), is_interleaved=True),
            "qk_norm": replace(plain.norm, has_weight=False) if hf["use_qk_norm"] else None,
            "is_normed_after_rotation": True,
        }
        straight = {"rotary": None, "query_scaling": _scaling(facts)}
        is_rotated = rotated_layers(facts.path, hf, facts.num_layers)
        layers = []
        for layer, here in zip(plain.layers, is_rotated, strict=True):
            assert isinstance(layer.mixer, AttentionSpec)
            changes: dict[str, Any] = rotated if here else straight
            layers.append(replace(layer, mixer=replace(layer.mixer, **changes)))
        routing = Routing(
            top_k=size(facts, "num_experts_per_tok"), scores="sigmoid", is_renormalized=False
        )
        experts = routed_experts(facts, routing, scales_inputs=True, shared=mlp_spec(facts))
        sparse, period = hf.get("moe_layers"), size(facts, "interleave_moe_layer_step")
        if sparse is None:
            sparse = range(period - 1, facts.num_layers, period)
        return with_experts(
            replace(plain, layers=tuple(layers)), experts, lambda layer: layer in sparse
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule | Stack]:
        old, new = f"{LAYERS}.feed_forward", f"{LAYERS}.mlp"
        names = {f"{old}.router": f"{new}.gate"}
        for part in ("gate", "up", "down"):
            names[f"blk.*.ffn_{part}_shexp"] = f"{new}.shared_experts.{part}_proj"
        width = size(facts, "intermediate_size")
        return [
            *renamed(names),
            *renamed_mlp(old, new),
            *renamed_mlp(f"{old}.shared_expert", f"{new}.shared_experts"),
            *renamed_mlp(f"{old}.experts.*", f"{new}.experts.*"),
            *stacked_experts(
                f"{old}.experts",
                f"{new}.experts.*",
                width,
                is_transposed=True,
                num_experts=size(facts, "num_experts"),
            ),
        ]


def _scaling(facts: ModelFacts) -> QueryScaling | None:
    if not facts.hf_config.get("attn_temperature_tuning"):
        return None
    return QueryScaling(
        strength=positive(facts, "attn_scale", 0.1), period=size(facts, "floor_scale"), shift=1
    )
