"""gpt-oss: attention sinks, windows in every other layer, experts with biases and bounded gates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, Stack, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import FILE_NORMS, MLP, expert_size, with_experts
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, biased_spec, positive, size, with_layers

_EXPERTS = f"{MLP}.experts"
# Of a gate in its logistic function, as in the quick approximation of GELU.
_ALPHA = 1.702


class GptOssForCausalLM(DecoderForCausalLM):
    """OpenAI, 2025; a factor of a gate is bounded, and 1 is added to it."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        alpha = facts.hf_config.get("swiglu_alpha", _ALPHA)
        if alpha != _ALPHA:
            raise facts.error(f"swiglu_alpha is {alpha!r}, not {_ALPHA}")
        dense = biased_spec(facts)
        experts = ExpertsSpec(
            num_experts=size(facts, "num_experts"),
            intermediate_size=expert_size(facts),
            act="quick_gelu",
            routing=Routing(top_k=size(facts, "num_experts_per_tok")),
            bias=True,
            limit=positive(facts, "swiglu_limit", 7.0),
            shift=1.0,
            router_bias=True,
        )
        return with_experts(with_layers(dense, {"has_sinks": True}), experts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [
            *FILE_NORMS,
            *renamed({f"{MLP}.router": f"{MLP}.gate"}),
            *_layer("gate_up", "gate_up_proj", ("gate_proj", "up_proj"), 2 * expert_size(facts)),
            *_layer("down", "down_proj", ("down_proj",), facts.hidden_size),
        ]


def _layer(item: str, stored: str, parts: Sequence[str], num_outputs: int) -> list[AnyRule]:
    """Rules of a layer of all experts, or of each; outputs of its parts take turns.

    Plain weights of all are stored inputs by outputs, others as outputs by inputs.
    """
    rules: list[AnyRule] = [
        Stack(f"{_EXPERTS}.{stored}", f"{_EXPERTS}.*.{item}.weight"),
        Stack(f"{_EXPERTS}.{stored}_bias", f"{_EXPERTS}.*.{item}.bias"),
        Stack(f"{_EXPERTS}.{stored}_blocks", f"{_EXPERTS}.*.{item}_blocks.weight"),
    ]
    orders = [torch.arange(i, num_outputs, len(parts)) for i in range(len(parts))]
    for source in (item, f"{item}_blocks", stored):
        views = (
            Part(f"{_EXPERTS}.*.{part}", order, num_outputs, is_transposed=source == item)
            for part, order in zip(parts, orders, strict=True)
        )
        is_alternative = source != stored
        rules.append(Rule(f"{_EXPERTS}.*.{source}", tuple(views), is_alternative))
    return rules
