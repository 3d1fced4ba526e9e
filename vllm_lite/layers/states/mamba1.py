"""A state-space mixer with a state for each channel (Mamba: Gu and Dao, 2024).

The convolved channels are projected once more, to a step of low rank and to the vectors that
enter and read the states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from vllm_lite.layers.norm import NormSpec, make_norm
from vllm_lite.layers.state import (
    CausalConv,
    MixerParts,
    ProjectedMixer,
    StateSpec,
    sharded,
    state_places,
)
from vllm_lite.layers.weights import NamedSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1Spec(StateSpec):
    """Channels with a state of `state_size` numbers each."""

    num_channels: int
    state_size: int
    conv_kernel: int
    # The rank of the projection to steps.
    dt_rank: int
    act: str
    # Step and vectors are normalised; by weights of the checkpoint, or by none.
    inner_norm: NormSpec | None = None
    norm_weights: Literal["stored", "ones"] = "stored"
    # Whether the convolution, and the linear layers in and out, have a bias.
    conv_bias: bool = True
    bias: bool = False

    def make(self, parts: MixerParts) -> Mamba1Mixer:
        return Mamba1Mixer(self, parts)


class PlainNorm(nn.Module):
    """A root-mean-square norm of heads in place, without a weight."""

    def __init__(self, spec: NormSpec, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._ones, self._eps, self._norm = torch.ones(size, dtype=dtype), spec.eps, ops().rms_norm

    def norm_heads(self, x: Tensor) -> Tensor:
        """Normalise each head of [T, H, D], of any strides, in place."""
        return self._norm(x, self._ones, self._eps, out=x)


class Mamba1Mixer(ProjectedMixer):
    """out(scan(conv(x)) * silu(z)), where one linear layer computes z and x."""

    def __init__(self, spec: Mamba1Spec, parts: MixerParts) -> None:
        channels = Shard.even(spec.num_channels, "channels")
        conv = CausalConv(spec.conv_kernel, [channels], bias=spec.conv_bias)
        super().__init__(conv.state_shape, (spec.state_size, channels.size))
        width, methods = channels.full_size, parts.methods
        self.in_proj = MergedColumnParallelLinear(
            methods("in_proj"), parts.hidden_size, [width, width], bias=spec.bias
        )
        self._split = [spec.dt_rank, spec.state_size, spec.state_size]
        self.select_proj = RowParallelLinear(methods("select_proj"), width, sum(self._split))
        self.step_proj = ColumnParallelLinear(methods("step_proj"), spec.dt_rank, width, bias=True)
        self.out_proj = RowParallelLinear(
            methods("out_proj"), width, parts.hidden_size, bias=spec.bias
        )
        self.conv1d = conv
        if spec.inner_norm is not None:
            kind = make_norm if spec.norm_weights == "stored" else PlainNorm
            self.dt_layernorm, self.b_layernorm, self.c_layernorm = (
                kind(spec.inner_norm, size, parts.dtype) for size in self._split
            )
        self._halves = [channels.size, channels.size]
        self._has_norms = spec.inner_norm is not None
        self._channels = channels
        # Checkpoints store a as log(-a), and one channel's numbers beside each other.
        self._stored = torch.empty(channels.size, spec.state_size, dtype=torch.float32)
        self._a = torch.empty(0)
        self._d = torch.empty(channels.size, dtype=torch.float32)
        self._act, self._ops = activation_name(spec.act), ops()

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        places, conv = state_places(), self.conv1d
        conv_states, states = self._states
        gate, inputs = projected.split_with_sizes(self._halves, 1)
        x = self._ops.causal_conv1d(inputs, conv.weight, conv.bias, conv_states, *places, self._act)
        step, b, c = self.select_proj.kernel(x).split_with_sizes(self._split, 1)
        if self._has_norms:
            self.dt_layernorm.norm_heads(step.view(-1, 1, step.shape[1]))
            self.b_layernorm.norm_heads(b.view(-1, 1, b.shape[1]))
            self.c_layernorm.norm_heads(c.view(-1, 1, c.shape[1]))
        dt = self.step_proj.kernel(step)
        y = self._ops.channel_scan(x, dt, b, c, gate, states, *places, a=self._a, d=self._d)
        return self.out_proj.kernel(y)

    def weight_slots(self) -> Iterator[NamedSlot]:
        for name, numbers in (("A_log", self._stored), ("D", self._d)):
            yield NamedSlot("", name, sharded(numbers, self._channels))

    def process_weights_after_loading(self) -> None:
        """Compute a [N, C] from its stored logarithm."""
        self._a = self._stored.exp().neg_().t().contiguous()
        self._stored = torch.empty(0)
