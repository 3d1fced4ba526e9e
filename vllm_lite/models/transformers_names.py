"""Rules for tensors that checkpoints name otherwise than transformers' module that they fill.

Transformers has renamings by model, which are read backwards here. What it computes from several
tensors, or otherwise than by renaming, is refused, but for experts stored one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    apply_renamings,
)

from vllm_lite.errors import CheckpointError
from vllm_lite.loader.weight_rules import Alias, AnyRule, Part, Rule

# How checkpoints name the matrices of an expert, where transformers stacks them.
EXPERTS = "mlp.experts.*.gate_proj.weight"
_MERGED = {EXPERTS, "mlp.experts.*.down_proj.weight"}
_STACKS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def merged_names(model: Any) -> set[str]:
    """Patterns of the checkpoint's names that transformers puts together as it loads them."""
    found = get_model_conversion_mapping(model, add_legacy=False)
    return {name for conversion in found for name in conversion.source_patterns}


def name_rules(model: Any) -> list[AnyRule]:
    """From names in checkpoints to those of `model`; raises CheckpointError where more differs."""
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    changes = [x for x in conversions if isinstance(x, WeightConverter)]
    # What files may begin with is not known before they are opened.
    renamings = [
        conversion.reverse_transform()
        for conversion in reversed(conversions)
        if isinstance(conversion, WeightRenaming) and not isinstance(conversion, PrefixChange)
    ]
    rules: dict[str, AnyRule] = {}
    for name in _own_names(model.state_dict(), conversions):
        for change in changes:
            is_met = any(re.search(pattern, name) for pattern in change.target_patterns)
            if is_met and _MERGED.isdisjoint(change.source_patterns):
                raise CheckpointError(f"transformers computes {name} from other tensors")
        rule = _rule(apply_renamings(name, renamings), name)
        if rule is not None:
            rules.setdefault(rule.source, rule)
    return [*rules.values(), *_tied(model.all_tied_weights_keys)]


def _own_names(names: Iterable[str], conversions: Iterable[Any]) -> Iterator[str]:
    """`names`, and those of an expert in place of its stack's."""
    splits = any(EXPERTS in conversion.source_patterns for conversion in conversions)
    for name in names:
        stack, _, last = name.rpartition(".")
        if splits and stack.endswith("mlp.experts") and last in _STACKS:
            yield from (f"{stack}.0.{part}.weight" for part in _STACKS[last])
        else:
            yield name


def _rule(stored: str, own: str) -> AnyRule | None:
    if stored == own:
        return None
    (stored_layer, stored_last), (own_layer, own_last) = (
        (layer, last) for layer, _, last in (name.rpartition(".") for name in (stored, own))
    )
    numbers, own_numbers = ([x for x in n.split(".") if x.isdigit()] for n in (stored, own))
    if numbers != own_numbers:
        if stored_last != own_last:
            raise CheckpointError(f"its tensor {own} is stored as {stored}")
        return Rule(stored_layer, (Part(own_layer),))
    if stored_last == own_last and own_last in ("weight", "bias"):
        # Of all of a layer's tensors, scales of quantised weights included.
        return Rule(_pattern(stored_layer), (Part(_pattern(own_layer)),))
    return Alias(_pattern(stored), _pattern(own))


def _tied(names: dict[str, str]) -> Iterator[Rule]:
    """Tensors, matrices of words excepted, that files hold once and modules have twice."""
    for target, source in names.items():
        (layer, _, last), (other, _, other_last) = (x.rpartition(".") for x in (source, target))
        if last == other_last == "bias":
            yield Rule(layer, (Part(layer), Part(other)))


def _pattern(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
