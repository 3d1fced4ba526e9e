"""Jamba: layers of Mamba, some of attention without positions; experts in some of either."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.states.mamba1 import Mamba1Spec
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import with_states
from vllm_lite.models.mamba import mamba1_rules, step_rank
from vllm_lite.models.mixtures import expert_rules, renamed_mlp, routed_experts, with_experts
from vllm_lite.models.spec import DecoderSpec, decoder_spec, size, with_layers


class JambaForCausalLM(DecoderForCausalLM):
    """Lieber et al., 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf, plain = facts.hf_config, decoder_spec(facts)
        mixer = Mamba1Spec(
            num_channels=_num_channels(facts),
            state_size=size(facts, "mamba_d_state"),
            conv_kernel=size(facts, "mamba_d_conv"),
            dt_rank=step_rank(facts, "mamba_dt_rank"),
            act=hf["hidden_act"],
            inner_norm=plain.norm,
            conv_bias=bool(hf["mamba_conv_bias"]),
            bias=bool(hf["mamba_proj_bias"]),
        )
        routing = Routing(top_k=size(facts, "num_experts_per_tok"), is_renormalized=False)
        experts = routed_experts(facts, routing)
        period, offset = size(facts, "attn_layer_period"), hf["attn_layer_offset"]
        attends = (i % period == offset for i in range(facts.num_layers))
        kinds = ("attention" if here else "state" for here in attends)
        dense = with_states(with_layers(plain, {"rotary": None}), mixer, kinds)
        return with_experts(dense, experts, partial(_is_sparse, facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        layer = "model.layers.*"
        names = {
            "model.final_layernorm": "model.norm",
            f"{layer}.pre_ff_layernorm": f"{layer}.post_attention_layernorm",
            f"{layer}.feed_forward.router": f"{layer}.mlp.gate",
        }
        return (
            *renamed(names),
            *renamed_mlp(f"{layer}.feed_forward", f"{layer}.mlp"),
            *expert_rules(size(facts, "intermediate_size"), f"{layer}.feed_forward"),
            *mamba1_rules(f"{layer}.mamba", f"{layer}.mixer", _num_channels(facts)),
        )


def _num_channels(facts: ModelFacts) -> int:
    return size(facts, "mamba_expand") * facts.hidden_size


def _is_sparse(facts: ModelFacts, layer: int) -> bool:
    hf, period = facts.hf_config, size(facts, "expert_layer_period")
    return size(facts, "num_experts") > 1 and layer % period == hf["expert_layer_offset"]
