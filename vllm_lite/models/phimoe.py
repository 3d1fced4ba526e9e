"""Phi-3.5-MoE (arXiv:2404.14219): layer norms, and two experts chosen one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.mixtral import mixtral_rules
from vllm_lite.models.mixtures import MLP, routed_experts, with_experts
from vllm_lite.models.spec import DecoderSpec, positive


class PhimoeForCausalLM(DecoderForCausalLM):
    """An expert's weight is its share among those whose logits are near its own (SparseMixer)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        if hf["num_experts_per_tok"] != 2:
            raise CheckpointError(
                f"{facts.path}: num_experts_per_tok is {hf['num_experts_per_tok']!r}, not 2"
            )
        routing = Routing(
            top_k=2,
            scores="sparsemixer",
            is_renormalized=False,
            tolerance=2 * positive(facts, "router_jitter_noise", 0.01),
        )
        dense = replace(
            LlamaForCausalLM.spec(facts),
            norm=NormSpec(kind="layer", eps=positive(facts, "rms_norm_eps", 1e-5), bias=True),
            head_bias=bool(hf["lm_head_bias"]),
        )
        return with_experts(dense, routed_experts(facts, routing))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *mixtral_rules(facts),
            *(
                replace(rule, is_alternative=True)
                for rule in renamed({f"{MLP}.router": f"{MLP}.gate"})
            ),
        ]
