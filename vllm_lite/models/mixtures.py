"""Shared by families of mixtures of experts: which layers have one, and checkpoints' layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, Stack, fused, renamed
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, positive, size

LAYERS = "model.layers.*"
MLP = f"{LAYERS}.mlp"
GATED_LAYERS = {name: name for name in ("gate_proj", "up_proj", "down_proj")}
# The router's bias to choose by, as DeepSeek's files call it.
CHOICE_BIAS = "e_score_correction_bias"
# What Mixtral's checkpoints, and others, call an MLP's layers.
NUMBERED = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
# What tools call the scales beside a stack of codes.
_STACKED_SCALES = ("scale", "scale_inv", "weight_scale", "weight_scale_inv", "weight_scale_2")

# GGUF files call the norm before a mixture after the block before it.
FILE_NORMS = renamed({"blk.*.post_attention_norm": f"{LAYERS}.post_attention_layernorm"})


def with_experts(
    dense: DecoderSpec, experts: ExpertsSpec, is_sparse: Callable[[int], bool] = lambda layer: True
) -> DecoderSpec:
    """`dense` with a mixture in the layers that is_sparse(number) tells."""
    layers = tuple(
        replace(layer, ffn=experts) if is_sparse(number) else layer
        for number, layer in enumerate(dense.layers)
    )
    return replace(dense, layers=layers)


def routed_experts(facts: ModelFacts, routing: Routing | None = None, **other: Any) -> ExpertsSpec:
    """Experts as Qwen's fields describe them; by default, norm_topk_prob makes weights sum to 1."""
    is_renormalized = bool(facts.hf_config.get("norm_topk_prob"))
    return ExpertsSpec(
        num_experts=size(facts, "num_experts"),
        intermediate_size=expert_size(facts),
        act=facts.hf_config.get("hidden_act", "silu"),
        routing=routing
        or Routing(top_k=size(facts, "num_experts_per_tok"), is_renormalized=is_renormalized),
        **other,
    )


def expert_size(facts: ModelFacts) -> int:
    """The width of an expert, which has a field of its own where there are dense layers too."""
    has_own = facts.hf_config.get("moe_intermediate_size") is not None
    return size(facts, "moe_intermediate_size" if has_own else "intermediate_size")


def biased_routing(facts: ModelFacts) -> Routing:
    """DeepSeek-V3's (arXiv:2412.19437): logistic scores, chosen from the best groups."""
    scale = facts.hf_config.get("routed_scaling_factor")
    return Routing(
        top_k=size(facts, "num_experts_per_tok"),
        scores="sigmoid",
        is_renormalized=bool(facts.hf_config.get("norm_topk_prob")),
        epsilon=1e-20,
        scale=1.0 if scale is None else positive(facts, "routed_scaling_factor", 1.0),
        num_groups=int(positive(facts, "n_group", 1)),
        top_groups=int(positive(facts, "topk_group", 1)),
        best_of_group=2,
    )


def with_biased_experts(facts: ModelFacts, dense: DecoderSpec) -> DecoderSpec:
    """`dense` with experts routed as DeepSeek-V3's, and shared ones, after the first layers."""
    shared = shared_mlp(facts, "num_shared_experts")
    experts = routed_experts(facts, biased_routing(facts), has_choice_bias=True, shared=shared)
    return with_experts(dense, experts, sparse_layers(facts))


def shared_mlp(facts: ModelFacts, count: str) -> MLPSpec | None:
    """The shared experts, which the field `count` counts, as one MLP; None where there are none."""
    if not facts.hf_config.get(count):
        return None
    width = expert_size(facts) * size(facts, count)
    return MLPSpec(intermediate_size=width, act=facts.hf_config.get("hidden_act", "silu"))


def sparse_layers(facts: ModelFacts) -> Callable[[int], bool]:
    """Which layers have experts: as mlp_layer_types says, or all but first_k_dense_replace."""
    kinds, first = facts.hf_config.get("mlp_layer_types"), facts.hf_config["first_k_dense_replace"]
    if kinds is None:
        return lambda layer: layer >= first
    if len(kinds) != facts.num_layers or not all(kind in ("dense", "sparse") for kind in kinds):
        raise facts.error(
            f"mlp_layer_types does not call each of {facts.num_layers} layers dense or sparse"
        )
    return lambda layer: bool(kinds[layer] == "sparse")


def check_field(facts: ModelFacts, key: str, *known: object) -> None:
    """Raise CheckpointError where the configuration gives `key` a value that is not known."""
    value = facts.hf_config.get(key)
    if value is not None and value not in known:
        names = " or ".join(map(repr, known))
        raise facts.error(f"{key} is {value!r}, not {names}")


def expert_rules(intermediate_size: int, at: str = MLP, to: str = MLP) -> list[AnyRule]:
    """Rules of mixtures at `at` whose experts are stored one by one, or all in one tensor.

    They fill the mixtures at `to`.
    """
    expert = f"{to}.experts.*"
    both = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
    moved: Mapping[str, str] = {f"{at}.experts.*.{n}": f"{expert}.{n}" for n in GATED_LAYERS}
    numbered = {f"{at}.experts.*.{n}": f"{expert}.{own}" for n, own in NUMBERED.items()}
    return [
        replace(fused("blk.*.ffn_gate_up_exps.*", expert, both), is_alternative=True),
        *stacked_experts(f"{at}.experts", expert, intermediate_size),
        *(renamed(moved) if at != to else ()),
        *(replace(rule, is_alternative=True) for rule in renamed(numbered)),
    ]


def renamed_mlp(source: str, target: str, names: Mapping[str, str] = GATED_LAYERS) -> list[Rule]:
    """A gated MLP under another name, and its layers under those that `names` begin with."""
    return renamed({f"{source}.{old}": f"{target}.{new}" for old, new in names.items()})


def stacked_experts(
    source: str,
    layers: str,
    intermediate_size: int,
    *,
    suffixes: tuple[str, str] = ("gate_up_proj", "down_proj"),
    is_transposed: bool = False,
    num_experts: int = 0,
) -> list[Rule | Stack]:
    """A mixture whose tensors source.suffix hold all experts, gates and factors as one matrix.

    They fill gate_proj, up_proj and down_proj of `layers`, where `*` stands for an expert. With
    `num_experts`, all of them may share a scale.
    """
    first, last = suffixes
    sizes = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
    item = f"{source}.*"
    gate_up = fused(f"{item}.gate_up", layers, sizes, is_transposed=is_transposed)
    down = Part(f"{layers}.down_proj", is_transposed=is_transposed)
    return [
        *_stacks(f"{source}.{first}", f"{item}.gate_up", num_experts),
        *_stacks(f"{source}.{last}", f"{item}.down", num_experts),
        replace(gate_up, is_alternative=True),
        Rule(f"{item}.down", (down,), is_alternative=True),
    ]


def _stacks(source: str, item: str, num_items: int) -> Iterator[Stack]:
    """A tensor of all experts, and its scales where it is one of codes."""
    yield Stack(source, f"{item}.weight")
    layer = source.removesuffix(".weight")
    start = f"{layer}_" if layer == source else f"{layer}."
    for name in _STACKED_SCALES:
        own = f"{item}.weight_{name.removeprefix('weight_')}"
        yield Stack(start + name, own, None, num_items)
    yield Stack(f"{start}input_scale", f"{item}.input_scale", None, num_items)
