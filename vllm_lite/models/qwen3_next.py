"""Qwen3-Next and Qwen3.5: gated delta rule, and every fourth layer gated attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.layers.states.delta import DeltaSpec
from vllm_lite.loader.weight_rules import (
    AnyRule,
    Part,
    Rule,
    by_head,
    fused,
    log_of_negative,
    plus_one,
    renamed,
)
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import layer_kinds, with_states
from vllm_lite.models.mixtures import FILE_NORMS, LAYERS, with_experts
from vllm_lite.models.qwen3_moe import every_nth_layer, experts_and_shared, qwen_rules
from vllm_lite.models.spec import DecoderSpec, biased_spec, size, with_layers


class Qwen3_5ForCausalLM(DecoderForCausalLM):
    """Qwen Team, 2026: the text model."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return _dense(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        delta = delta_spec(facts)
        old, new = "model.layers.*.linear_attn", "model.layers.*.mixer"
        keys, values = delta.num_key_heads * delta.key_size, delta.num_heads * delta.value_size
        names = {
            f"{old}.in_proj_z": f"{new}.z_proj",
            f"{old}.in_proj_b": f"{new}.beta_proj",
            f"{old}.in_proj_a": f"{new}.decay_proj",
        }
        parts = {"q_proj": keys, "k_proj": keys, "v_proj": values}
        return (
            *_rules(facts, delta),
            *_file_rules(facts, delta, in_turn=True),
            *renamed(names),
            fused(f"{old}.in_proj_qkv", new, parts),
        )


class Qwen3_5MoeForCausalLM(DecoderForCausalLM):
    """The same with experts in every layer."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        experts = experts_and_shared(facts)
        routing = replace(experts.routing, is_renormalized=True)
        return with_experts(_dense(facts), replace(experts, routing=routing))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return *Qwen3_5ForCausalLM.weight_rules(facts), *qwen_rules(facts)


class Qwen3NextForCausalLM(DecoderForCausalLM):
    """Qwen Team, 2025: what belongs to one head of keys is stored together."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        dense = _dense(facts)
        if not facts.hf_config.get("num_experts"):
            return dense
        return with_experts(dense, experts_and_shared(facts), every_nth_layer(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        delta = delta_spec(facts)
        old, new = "model.layers.*.linear_attn", "model.layers.*.mixer"
        shared = delta.num_heads // delta.num_key_heads
        values = shared * delta.value_size
        sizes = {"q_proj": delta.key_size, "k_proj": delta.key_size}
        sizes |= {"v_proj": values, "z_proj": values}
        both = {"beta_proj": shared, "decay_proj": shared}
        mixture = qwen_rules(facts) if facts.hf_config.get("num_experts") else ()
        return (
            *mixture,
            *_rules(facts, delta),
            *_file_rules(facts, delta, in_turn=False),
            *(
                by_head(source, new, sizes, delta.num_key_heads)
                for source in ("blk.*.ssm_in", f"{old}.in_proj_qkvz")
            ),
            *(
                by_head(source, new, both, delta.num_key_heads)
                for source in ("blk.*.ssm_ba", f"{old}.in_proj_ba")
            ),
        )


def _dense(facts: ModelFacts) -> DecoderSpec:
    plain = biased_spec(facts)
    norm, delta = NormSpec(eps=plain.norm.eps, in_float32=True), delta_spec(facts)
    gated = with_layers(plain, {"qk_norm": norm, "has_output_gate": True})
    return replace(with_states(gated, delta, _kinds(facts)), norm=norm)


def delta_spec(facts: ModelFacts) -> DeltaSpec:
    """The mixer of fields that begin with linear_; raises CheckpointError."""
    num_heads, num_key_heads = (
        size(facts, f"linear_num_{what}_heads") for what in ("value", "key")
    )
    if num_heads % num_key_heads:
        raise facts.error(
            f"{num_heads} heads of linear attention (linear_num_value_heads) cannot share "
            f"{num_key_heads} heads of keys"
        )
    return DeltaSpec(
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        key_size=size(facts, "linear_key_head_dim"),
        value_size=size(facts, "linear_value_head_dim"),
        conv_kernel=size(facts, "linear_conv_kernel_dim"),
        act=facts.hf_config["hidden_act"],
        norm_eps=facts.hf_config["rms_norm_eps"],
    )


def delta_rules(old: str, new: str, delta: DeltaSpec) -> list[Rule]:
    """The rules of what every family's delta mixer is stored as."""
    keys, values = delta.num_key_heads * delta.key_size, delta.num_heads * delta.value_size
    return [
        *renamed({old: new, f"{old}.norm": f"{new}.norm", f"{old}.out_proj": f"{new}.out_proj"}),
        fused(f"{old}.conv1d", new, {"q_conv": keys, "k_conv": keys, "v_conv": values}),
    ]


def _rules(facts: ModelFacts, delta: DeltaSpec) -> list[Rule]:
    """The rules of both generations: norms store their weight minus 1, queries lie by gates."""
    norms = (
        *("model.norm", f"{LAYERS}.input_layernorm", f"{LAYERS}.post_attention_layernorm"),
        *(f"{LAYERS}.self_attn.q_norm", f"{LAYERS}.self_attn.k_norm"),
    )
    halves = {"q_proj": facts.head_size, "output_gate_proj": facts.head_size}
    attention = f"{LAYERS}.self_attn"
    return [
        *renamed({name: name for name in norms}, transform=plus_one),
        *delta_rules(f"{LAYERS}.linear_attn", f"{LAYERS}.mixer", delta),
        by_head(f"{attention}.q_proj", attention, halves, facts.num_heads),
    ]


def _file_rules(facts: ModelFacts, delta: DeltaSpec, *, in_turn: bool) -> list[Rule]:
    """Layers of GGUF files; with `in_turn`, heads of one head of keys do not follow each other."""
    if facts.format != "gguf":
        return []
    new, count = "model.layers.*.mixer", delta.num_heads
    heads = torch.arange(count)
    if in_turn:
        heads = heads.view(-1, delta.num_key_heads).t().reshape(-1)
    features = (heads[:, None] * delta.value_size + torch.arange(delta.value_size)).flatten()
    keys, values = delta.num_key_heads * delta.key_size, len(features)
    total = 2 * keys + values
    taken: dict[str, slice | torch.Tensor]
    taken = {"q": slice(0, keys), "k": slice(keys, 2 * keys), "v": 2 * keys + features}
    own = {
        "attn_gate": Part(f"{new}.z_proj", features, values),
        "ssm_beta": Part(f"{new}.beta_proj", heads, count),
        "ssm_alpha": Part(f"{new}.decay_proj", heads, count),
        "ssm_a": Part(new, heads, count, transform=log_of_negative),
        "ssm_dt": Part(new, heads, count),
        "ssm_out": Part(f"{new}.out_proj", inputs=features),
    }
    attention, halves = "model.layers.*.self_attn", ("q_proj", "output_gate_proj")
    return [
        *FILE_NORMS,
        *(Rule(f"blk.*.{name}", (part,)) for name, part in own.items()),
        *(
            Rule(source, tuple(Part(f"{new}.{n}_{kind}", x, total) for n, x in taken.items()))
            for source, kind in (("blk.*.attn_qkv", "proj"), ("blk.*.ssm_conv1d", "conv"))
        ),
        by_head("blk.*.attn_q", attention, dict.fromkeys(halves, facts.head_size), facts.num_heads),
    ]


def _kinds(facts: ModelFacts) -> list[str]:
    """The kind of each layer, by name or by the period of attention."""
    if facts.hf_config.get("layer_types") is not None:
        return layer_kinds(facts)
    period = facts.hf_config.get("full_attention_interval") or 4
    return ["state" if (i + 1) % period else "attention" for i in range(facts.num_layers)]
