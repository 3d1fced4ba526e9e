"""DeepSeekMoE (arXiv:2401.06066), the first: softmax routing, shared experts, Llama's attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM, gguf_pairs
from vllm_lite.models.mixtures import expert_rules, routed_experts, shared_mlp, with_experts
from vllm_lite.models.spec import DecoderSpec, positive, size


class DeepseekForCausalLM(DecoderForCausalLM):
    """Every moe_layer_freq-th layer from first_k_dense_replace on has experts."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        scores = facts.hf_config["scoring_func"]
        if scores != "softmax":
            raise CheckpointError(f"{facts.path}: scoring_func is {scores!r}, not 'softmax'")
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
