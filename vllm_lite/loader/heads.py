"""The tensors that a head's checkpoint may have or not: a head is built for what is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.loader.contents import tensor_names
from vllm_lite.loader.weight_rules import WeightRules
from vllm_lite.models.draft_head import OPTIONAL, STORED
from vllm_lite.models.registry import marks_of


def with_stored_tensors(config: VllmConfig) -> VllmConfig:
    """`config` of a head, whose facts list which of the tensors OPTIONAL its files have."""
    facts, stored = config.facts, []
    if config.load.load_format != "dummy":
        rules = WeightRules((), marks=marks_of(facts))
        names = tensor_names(Path(facts.path), config.load)
        held = {rules.name_of(name) for name in names if rules.has_place(name)}
        stored = [name for name in OPTIONAL if name in held]
    hf = {**facts.hf_config, STORED: stored}
    return replace(config, facts=replace(facts, hf_config=hf))
