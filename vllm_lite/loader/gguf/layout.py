"""Tensors of a GGUF file by names and in shapes that weight rules can speak of.

llama.cpp keeps all experts of a layer in one tensor, and projections of all streams; it adds or
leaves out dimensions of 1, and gives some tensors no suffix, or that of another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from vllm_lite.config.checkpoints.gguf_header import GGUFFile, GGUFTensor

# Names in a layer to those that tell the layer of the model from its tensor.
_NAMES = {
    "ssm_a": "ssm_a.A_log",
    "ssm_d": "ssm_d.D",
    "attn_sinks.weight": "attn_sinks.sinks",
    "exp_probs_b.bias": "exp_probs_b.e_score_correction_bias",
    "exp_probs_b": "exp_probs_b.e_score_correction_bias",
    "ffn_norm": "ffn_norm.weight",
    "ffn_gate_inp.scale": "mixture.scale",
    "ffn_down_exps.scale": "mixture.per_expert_scale",
}
# What layers' names end with whose tensors are several matrices.
_STACKS = ("_exps", "altup_proj", "altup_unembd_proj")
_FLAT = ("ssm_d", "ssm_norm", "exp_probs_b")
_CONVOLUTIONS = ("ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "shortconv.conv")


def laid_out(file: GGUFFile) -> Iterator[GGUFTensor]:
    """The file's tensors in its order, stacks as one tensor for each expert."""
    for stored in sorted(file.tensors.values(), key=lambda tensor: (tensor.path, tensor.offset)):
        yield from _parts(
            replace(stored, name=_name(file, stored.name), shape=_shape(file, stored))
        )


def _name(file: GGUFFile, name: str) -> str:
    if not name.startswith("blk."):
        return name
    _, number, own = name.split(".", 2)
    # Mamba's first generation has a layer of that name, the second one a bias alone.
    if own == "ssm_dt.bias" and f"blk.{number}.ssm_dt.weight" not in file.tensors:
        own = "ssm_dt.dt_bias"
    return f"blk.{number}.{_NAMES.get(own, own)}"


def _shape(file: GGUFFile, tensor: GGUFTensor) -> tuple[int, ...]:
    own, shape = ".".join(tensor.name.split(".")[2:]), tensor.shape
    layer = own.removesuffix(".weight").removesuffix(".bias")
    # Kimi's numbers of heads, which its other checkpoints have among dimensions of 1.
    if layer == "ssm_a" and f"{tensor.name.removesuffix('a')}f_a.weight" in file.tensors:
        return 1, 1, math.prod(shape), 1
    if layer in _FLAT or (layer == "ssm_a" and shape[-1] == 1) or shape == (1, 1, *shape[2:]):
        return (math.prod(shape),)
    if layer in _CONVOLUTIONS and len(shape) > 1:
        return math.prod(shape[:-1]), 1, shape[-1]
    return (1, *shape) if layer == "ffn_gate_inp_shexp" and len(shape) == 1 else shape


def _parts(tensor: GGUFTensor) -> Iterator[GGUFTensor]:
    """The matrices of a stack, each with its number behind the layer's name; or `tensor`."""
    layer, _, suffix = tensor.name.rpartition(".")
    if not layer.endswith(_STACKS):
        yield tensor
        return
    count, *shape = tensor.shape
    size = tensor.nbytes // count
    for i in range(count):
        yield replace(
            tensor,
            name=f"{layer}.{i}.{suffix}",
            shape=tuple(shape),
            offset=tensor.offset + i * size,
            nbytes=size,
        )
