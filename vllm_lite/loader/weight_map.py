"""The tensors that a model needs, by name, and those of a checkpoint that it does not.

Names are the model's own: those of Llama's Hugging Face checkpoints, where the parts of a fused
layer are named one by one. weight_rules translates other checkpoints' names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from vllm_lite.layers.weights import WeightedLayer, WeightSlot

# Fused module: its shards' names.
FUSED = {
    "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
    "qkvg_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "g": "output_gate_proj"},
    "gate_up_proj": {"0": "gate_proj", "1": "up_proj"},
    "in_proj": dict(zip("01234", ("z_proj", "x_proj", "b_proj", "c_proj", "dt_proj"), strict=True)),
    "conv1d": {"0": "x_conv", "1": "b_conv", "2": "c_conv"},
    "bcx_proj": {"0": "b_proj", "1": "c_proj", "2": "x_proj"},
    "qkvz_proj": {"0": "q_proj", "1": "k_proj", "2": "v_proj", "3": "z_proj"},
    "ba_proj": {"0": "beta_proj", "1": "decay_proj"},
    "embeddings": {
        "words": "embed_tokens",
        "places": "embed_positions",
        "types": "embed_types",
        "norm": "embed_norm",
    },
    "qkv_conv1d": {"0": "q_conv", "1": "k_conv", "2": "v_conv"},
}

# Layers of attention that a layer which reads another's cache has for nothing.
_OF_KEYS = ("k_proj", "v_proj", "k_norm")
# Suffixes of tensors that older checkpoints have although the configuration implies them.
# Scales of caches are for caches that have none of their own, and zero points are all zero.
_UNUSED = (
    *(f".self_attn.{name}_scale" for name in ("k", "v", "q", "prob", "attn.prob")),
    *(f".self_attn.{name}_zero_point" for name in "kvq"),
)
# Tensors of quantised layers beside which others are room for a kernel, or settings once more.
_WITH_NOTES = ("B", "B_24", "W_q", "SCB")
# Of a layer with scales: what its settings imply, or do not use.
_BESIDE_SCALES = (
    *("weight_shape", "input_scale", "input_global_scale", "output_scale"),
    *("weight_scale_2", "weight_zero_point", "input_zero_point"),
)
# Of a layer whose inputs a matrix turns: what training or kernels for GPUs use.
_BESIDE_TRANSFORM = ("backward_hadamard_matrix", "act_global_scale")
_DERIVED = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")


@dataclass(frozen=True, slots=True)
class Target:
    """A slot and the layer that it belongs to."""

    layer: WeightedLayer
    slot: WeightSlot


def weight_targets(model: nn.Module) -> dict[str, Target]:
    """Every tensor that `model` needs, by name."""
    targets = {}
    for path, module in model.named_modules():
        if isinstance(module, WeightedLayer):
            for shard, suffix, slot in module.weight_slots():
                targets[f"{_layer_name(path, shard)}.{suffix}"] = Target(module, slot)
    return targets


def lacking(targets: Mapping[str, Target], filled: Collection[str]) -> list[str]:
    """Targets that are not filled and have to be.

    What a layer may lack, and has for all outputs alike, no part of it lacks if others have it.
    """
    shared = {
        (targets[name].layer, name.rpartition(".")[2])
        for name in filled
        if targets[name].slot.output_dim is None
    }
    return [
        name
        for name, target in targets.items()
        if name not in filled
        and (not target.slot.is_optional or (target.layer, name.rpartition(".")[2]) in shared)
    ]


def is_ignorable(name: str, targets: Collection[str]) -> bool:
    """Whether a tensor without a target may be ignored."""
    # Quantisation tools write zero biases for layers without any.
    if name.endswith(".bias") and name.removesuffix("bias") + "qweight" in targets:
        return True
    if name.endswith(_UNUSED):
        return True
    # Zero points that are all the middle: BitBLAS's files may have room for them.
    layer, _, suffix = name.rpartition(".")
    if suffix in ("zeros", "qzeros") and f"{layer}.qweight" in targets:
        return True
    if suffix in _BESIDE_TRANSFORM and f"{layer}.forward_hadamard_matrix" in targets:
        return True
    if suffix in _BESIDE_SCALES and f"{layer}.weight_scale" in targets:
        return True
    if suffix != "bias" and any(f"{layer}.{own}" in targets for own in _WITH_NOTES):
        return True
    block, _, part = name.rpartition(".self_attn.")
    if part.split(".")[0] in _OF_KEYS and f"{block}.self_attn.q_norm.weight" in targets:
        return f"{block}.self_attn.k_norm.weight" not in targets
    if layer == "lm_head":
        # A tied head has no target; some checkpoints have it all the same.
        return suffix == "weight" or not any(target.startswith("lm_head.") for target in targets)
    return name.endswith(_DERIVED)


def parts_of_layer(path: str) -> list[str]:
    """The layers that the module at `path` holds: itself, or those that are fused in it."""
    parent, _, module = path.rpartition(".")
    return [f"{parent}.{name}" for name in FUSED[module].values()] if module in FUSED else [path]


def _layer_name(path: str, shard: str) -> str:
    parent, _, module = path.rpartition(".")
    if module == "attn":  # has no module of its own in checkpoints
        return parent
    name = FUSED[module][shard] if shard else module
    return f"{parent}.{name}" if parent else name
