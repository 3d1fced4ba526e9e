"""LFM2: short gated convolutions, and some layers of attention; perhaps experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.states.short_conv import ShortConvSpec
from vllm_lite.loader.weight_rules import Alias, AnyRule, Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import layer_kinds, with_states
from vllm_lite.models.mixtures import (
    CHOICE_BIAS,
    LAYERS,
    MLP,
    NUMBERED,
    expert_rules,
    renamed_mlp,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, decoder_spec, positive, size

_KINDS = {"full_attention": "attention", "conv": "state"}


class Lfm2ForCausalLM(DecoderForCausalLM):
    """Liquid AI, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        config = {**facts.hf_config, "intermediate_size": _intermediate_size(facts)}
        plain = decoder_spec(replace(facts, hf_config=config), has_qk_norm=True)
        conv = ShortConvSpec(
            conv_kernel=size(facts, "conv_L_cache"), bias=bool(facts.hf_config.get("conv_bias"))
        )
        return with_states(plain, conv, _kinds(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        names = {
            "token_embd_norm": "model.norm",
            "blk.*.shortconv.conv": f"{LAYERS}.mixer.x_conv",
            "blk.*.shortconv.out_proj": f"{LAYERS}.mixer.out_proj",
            "model.embedding_norm": "model.norm",
            f"{LAYERS}.operator_norm": f"{LAYERS}.input_layernorm",
            f"{LAYERS}.ffn_norm": f"{LAYERS}.post_attention_layernorm",
            f"{LAYERS}.self_attn.out_proj": f"{LAYERS}.self_attn.o_proj",
            f"{LAYERS}.self_attn.q_layernorm": f"{LAYERS}.self_attn.q_norm",
            f"{LAYERS}.self_attn.k_layernorm": f"{LAYERS}.self_attn.k_norm",
            f"{LAYERS}.conv.conv": f"{LAYERS}.mixer.x_conv",
            f"{LAYERS}.conv.out_proj": f"{LAYERS}.mixer.out_proj",
        }
        mlp = renamed_mlp(f"{LAYERS}.feed_forward", f"{LAYERS}.mlp", NUMBERED)
        parts = dict.fromkeys(("b_proj", "c_proj", "x_proj"), facts.hidden_size)
        sources = ("blk.*.shortconv.in_proj", f"{LAYERS}.conv.in_proj")
        return *renamed(names), *mlp, *(fused(at, f"{LAYERS}.mixer", parts) for at in sources)


class Lfm2MoeForCausalLM(DecoderForCausalLM):
    """The same with experts in all but the first layers."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        experts = ExpertsSpec(
            num_experts=size(facts, "num_experts"),
            intermediate_size=size(facts, "moe_intermediate_size"),
            act="silu",
            routing=Routing(
                top_k=size(facts, "num_experts_per_tok"),
                scores="sigmoid",
                is_renormalized=bool(hf.get("norm_topk_prob")),
                epsilon=1e-6,
                scale=positive(facts, "routed_scaling_factor", 1.0),
            ),
            has_choice_bias=bool(hf.get("use_expert_bias")),
        )
        first = hf["num_dense_layers"]
        return with_experts(Lfm2ForCausalLM.spec(facts), experts, lambda layer: layer >= first)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        old, gate = f"{LAYERS}.feed_forward", f"{MLP}.gate"
        return (
            *Lfm2ForCausalLM.weight_rules(facts),
            *renamed({f"{old}.gate": gate}),
            Alias(f"{old}.expert_bias", f"{gate}.{CHOICE_BIAS}"),
            *expert_rules(size(facts, "moe_intermediate_size"), old),
        )


def _kinds(facts: ModelFacts) -> list[str]:
    """The kind of each layer; older configurations list those that attend."""
    hf = facts.hf_config
    if hf.get("layer_types") is not None:
        return layer_kinds(facts, _KINDS)
    attending = hf.get("full_attn_idxs")
    if attending is None:
        attending = range(facts.num_layers)
    return ["attention" if i in attending else "state" for i in range(facts.num_layers)]


def _intermediate_size(facts: ModelFacts) -> int:
    """The width of the feed-forward blocks, which configurations may give before it is adjusted."""
    hf, width = facts.hf_config, size(facts, "intermediate_size")
    if not hf.get("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if hf.get("block_ffn_dim_multiplier") is None:
        return width
    width = int(positive(facts, "block_ffn_dim_multiplier", 1.0) * width)
    multiple = size(facts, "block_multiple_of")
    return -(-width // multiple) * multiple
