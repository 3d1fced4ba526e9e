"""A state-space mixer with one decay for each head (Mamba 2: Dao and Gu, 2024).

A convolution over the last inputs, a recurrence in each head, and a gated norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.state import (
    CausalConv,
    GatedNorm,
    MixerParts,
    ProjectedMixer,
    StateSpec,
    sharded,
    state_places,
)
from vllm_lite.layers.weights import NamedSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec(StateSpec):
    """Groups of heads share the vectors that enter and read their states."""

    num_heads: int
    head_size: int
    num_groups: int
    state_size: int
    conv_kernel: int
    act: str
    norm_eps: float
    # Smallest and largest time step.
    dt_limit: tuple[float, float]
    # Between the scan and the layer out stands a norm of the gated rows, a gate of normed rows, or
    # a gate alone.
    norm: Literal["gated first", "gated last", "none"] = "gated first"
    # Whether the convolution, and the linear layers in and out, have a bias.
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False

    def make(self, parts: MixerParts) -> Mamba2Mixer:
        return Mamba2Mixer(self, parts)


class Mamba2Mixer(ProjectedMixer):
    """out(norm(scan(conv(x)) * act(z))), where one linear layer computes z, x, b, c and dt."""

    def __init__(self, spec: Mamba2Spec, parts: MixerParts) -> None:
        heads = Shard.even(spec.num_heads, "heads")
        groups = Shard.even(spec.num_groups, "groups of heads")
        features, channels = heads.scaled(spec.head_size), groups.scaled(spec.state_size)
        conv = CausalConv(spec.conv_kernel, [features, channels, channels], bias=spec.conv_bias)
        super().__init__(conv.state_shape, (heads.size, spec.state_size, spec.head_size))
        inner, vectors = features.full_size, channels.full_size
        self.in_proj = MergedColumnParallelLinear(
            parts.methods("in_proj"),
            parts.hidden_size,
            [inner, inner, vectors, vectors, spec.num_heads],
            bias=spec.bias,
        )
        out_method = parts.methods("out_proj")
        self.out_proj = RowParallelLinear(out_method, inner, parts.hidden_size, bias=spec.out_bias)
        self.conv1d = conv
        self._is_normed, self._norm_first = spec.norm != "none", spec.norm == "gated last"
        if self._is_normed:
            self.norm = GatedNorm(features, parts.dtype)
        self._heads = heads
        # a, d and dt_bias; checkpoints store a as log(-a).
        self._a, self._d, self._dt_bias = torch.empty(3, heads.size, dtype=torch.float32)
        self._split = [features.size, conv.state_shape[1], heads.size]
        self._conv_split = [features.size, channels.size, channels.size]
        self._inner, self._group = features.size, features.size // groups.size
        self._x_shape = -1, heads.size, spec.head_size
        self._vector_shape = -1, groups.size, spec.state_size
        self._spec, self._act = spec, activation_name(spec.act)
        self._ops = ops()

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        places, spec, conv = state_places(), self._spec, self.conv1d
        conv_states, states = self._states
        gate, inputs, dt = projected.split_with_sizes(self._split, 1)
        mixed = self._ops.causal_conv1d(
            inputs, conv.weight, conv.bias, conv_states, *places, self._act
        )
        x, b, c = mixed.split_with_sizes(self._conv_split, 1)
        y = self._ops.selective_scan(
            x.view(self._x_shape),
            dt,
            b.view(self._vector_shape),
            c.view(self._vector_shape),
            states,
            *places,
            a=self._a,
            d=self._d,
            dt_bias=self._dt_bias,
            dt_limit=spec.dt_limit,
        )
        y = y.view(-1, self._inner)
        if not self._is_normed:
            return self.out_proj.kernel(self._ops.gated_product(y, gate, self._act))
        weight, eps, group = self.norm.weight, spec.norm_eps, self._group
        normed = self._ops.gated_rms_norm(y, gate, weight, eps, group, self._act, self._norm_first)
        return self.out_proj.kernel(normed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        for name, numbers in (("A_log", self._a), ("D", self._d), ("dt_bias", self._dt_bias)):
            yield NamedSlot("", name, sharded(numbers, self._heads))

    def process_weights_after_loading(self) -> None:
        self._a.exp_().neg_()
