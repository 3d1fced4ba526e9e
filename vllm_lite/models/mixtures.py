"""Shared by families of mixtures of experts: which layers have one, and checkpoints' layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, Stack, renamed, stacked_experts
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, size

LAYERS = "model.layers.*"
_EXPERT = f"{LAYERS}.mlp.experts.*"
# What Mixtral's checkpoints call an expert's layers.
_NUMBERED = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def with_experts(
    dense: DecoderSpec, experts: ExpertsSpec, is_sparse: Callable[[int], bool] = lambda layer: True
) -> DecoderSpec:
    """`dense` with a mixture in the layers that is_sparse(number) tells."""
    layers = tuple(
        replace(layer, ffn=experts) if is_sparse(number) else layer
        for number, layer in enumerate(dense.layers)
    )
    return replace(dense, layers=layers)


def shared_mlp(facts: ModelFacts, count_key: str, act: str) -> MLPSpec | None:
    """The shared experts that the field `count_key` counts, as one MLP; None where it is 0."""
    count = facts.hf_config.get(count_key)
    if not count:
        return None
    width = size(facts, "moe_intermediate_size") * size(facts, count_key)
    return MLPSpec(intermediate_size=width, act=act)


def expert_rules(intermediate_size: int, at: str = f"{LAYERS}.mlp") -> list[Rule | Stack]:
    """Rules of mixtures at `at` whose experts are stored one by one, or all in one tensor."""
    one_by_one: Mapping[str, str] = {
        f"{at}.experts.*.{name}": f"{_EXPERT}.{own}" for name, own in _NUMBERED.items()
    }
    if at == f"{LAYERS}.mlp":
        moved: list[Rule] = []
    else:
        names = ("gate_proj", "up_proj", "down_proj")
        moved = renamed({f"{at}.experts.*.{name}": f"{_EXPERT}.{name}" for name in names})
    return [
        *stacked_experts(f"{at}.experts", _EXPERT, intermediate_size),
        *moved,
        *(replace(rule, is_alternative=True) for rule in renamed(one_by_one)),
    ]
