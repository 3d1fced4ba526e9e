"""DBRX: layer norms, clamped projections, and experts whose matrices lie one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, Stack, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import LAYERS, MLP, with_experts
from vllm_lite.models.spec import (
    DecoderSpec,
    ExpertsSpec,
    decoder_spec,
    positive,
    size,
    with_layers,
)

_BLOCKS = "transformer.blocks.*"
# An expert's matrix, the layer of the model, and whether it is stored inputs by outputs.
_MATRICES = (("w1", "gate_proj", False), ("v1", "up_proj", False), ("w2", "down_proj", True))


class DbrxForCausalLM(DecoderForCausalLM):
    """Databricks, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        degree = hf.get("moe_normalize_expert_weights")
        if degree not in (None, 1):
            raise facts.error(f"moe_normalize_expert_weights is {degree!r}, not 1")
        act = hf.get("ffn_act_fn") or {}
        experts = ExpertsSpec(
            num_experts=size(facts, "num_experts"),
            intermediate_size=size(facts, "intermediate_size"),
            act=act.get("name", "silu"),
            routing=Routing(
                top_k=size(facts, "num_experts_per_tok"), is_renormalized=degree is not None
            ),
        )
        clip = None if hf.get("clip_qkv") is None else positive(facts, "clip_qkv", 0)
        plain = replace(decoder_spec(facts), norm=NormSpec(kind="layer", eps=1e-5))
        return with_experts(with_layers(plain, {"qkv_clip": clip}), experts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        around, stored = f"{_BLOCKS}.norm_attn_norm", f"{_BLOCKS}.ffn.experts.mlp"
        attention, count = f"{LAYERS}.self_attn", size(facts, "num_experts")
        query, key = (n * facts.head_size for n in (facts.num_heads, facts.num_kv_heads))
        names = {
            "blk.*.attn_output_norm": f"{LAYERS}.post_attention_layernorm",
            "transformer.wte": "model.embed_tokens",
            "transformer.norm_f": "model.norm",
            f"{around}.norm_1": f"{LAYERS}.input_layernorm",
            f"{around}.norm_2": f"{LAYERS}.post_attention_layernorm",
            f"{around}.attn.out_proj": f"{attention}.o_proj",
            f"{_BLOCKS}.ffn.router.layer": f"{MLP}.gate",
        }
        rules: list[AnyRule] = [*renamed(names)]
        heads = {"q_proj": query, "k_proj": key, "v_proj": key}
        rules.append(fused(f"{around}.attn.Wqkv", attention, heads))
        for name, own, is_transposed in _MATRICES:
            part = Part(f"{MLP}.experts.*.{own}", is_transposed=is_transposed)
            rules += [
                Stack(f"{stored}.{name}", f"{stored}.*.{name}.weight", count),
                Rule(f"{stored}.*.{name}", (part,)),
            ]
        return rules
