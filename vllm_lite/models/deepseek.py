"""DeepSeek: Llama with shared experts; from V2 on latent attention, from V3 a bias to choose by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.latent_attention import with_latents
from vllm_lite.models.llama import LlamaForCausalLM, gguf_pairs
from vllm_lite.models.mixtures import (
    check_field,
    expert_rules,
    expert_size,
    routed_experts,
    shared_mlp,
    sparse_layers,
    with_biased_experts,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, decoder_spec, positive, size

_METHODS = ("greedy", "group_limited_greedy")


class DeepseekForCausalLM(DecoderForCausalLM):
    """Every moe_layer_freq-th layer from first_k_dense_replace on has experts."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        scores = facts.hf_config["scoring_func"]
        if scores != "softmax":
            raise facts.error(f"scoring_func is {scores!r}, not 'softmax'")
        plain = routed_experts(facts, shared=shared_mlp(facts, "num_shared_experts"))
        scale = positive(facts, "routed_scaling_factor", 1.0)
        experts = replace(plain, routing=replace(plain.routing, scale=scale))
        first, period = facts.hf_config["first_k_dense_replace"], size(facts, "moe_layer_freq")
        return with_experts(
            LlamaForCausalLM.spec(facts),
            experts,
            lambda layer: layer >= first and layer % period == 0,
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*gguf_pairs(facts), *expert_rules(size(facts, "moe_intermediate_size"))]


class DeepseekV2ForCausalLM(DecoderForCausalLM):
    """DeepSeek-AI, 2024 (arXiv:2405.04434): experts by softmax, maybe from the best groups."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        check_field(facts, "topk_method", *_METHODS)
        is_grouped = hf.get("topk_method") == _METHODS[1]
        routing = Routing(
            top_k=size(facts, "num_experts_per_tok"),
            is_renormalized=bool(hf.get("norm_topk_prob")),
            scale=positive(facts, "routed_scaling_factor", 1.0),
            num_groups=size(facts, "n_group") if is_grouped else 1,
            top_groups=size(facts, "topk_group") if is_grouped else 1,
        )
        experts = routed_experts(facts, routing, shared=shared_mlp(facts, "num_shared_experts"))
        return with_experts(_dense(facts), experts, sparse_layers(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return expert_rules(expert_size(facts))


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    """DeepSeek-AI, 2024 (arXiv:2412.19437): experts by logistic scores and a bias."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_biased_experts(facts, _dense(facts))


def _dense(facts: ModelFacts) -> DecoderSpec:
    """The model without experts; neighbours are rotated unless it says otherwise."""
    spec = decoder_spec(facts, mlp_bias=bool(facts.hf_config.get("mlp_bias")))
    is_interleaved = bool(facts.hf_config.get("rope_interleave", True))
    return with_latents(spec, facts, is_interleaved=is_interleaved)
