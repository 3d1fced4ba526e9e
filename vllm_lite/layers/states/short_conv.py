"""A short convolution between two gates (LFM2: Liquid AI, 2025); its last inputs are its state."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.state import CausalConv, MixerParts, StateMixer, StateSpec, state_places
from vllm_lite.quantization.method import LinearKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec(StateSpec):
    """A convolution of as many channels as the residual stream has."""

    conv_kernel: int
    # Of the convolution and of both linear layers.
    bias: bool = False

    def make(self, parts: MixerParts) -> ShortConvMixer:
        return ShortConvMixer(self, parts)


class ShortConvMixer(StateMixer):
    """out(c * conv(b * x)), where one linear layer computes b, c and x."""

    def __init__(self, spec: ShortConvSpec, parts: MixerParts) -> None:
        size = parts.hidden_size
        channels = Shard.even(size, "channels")
        conv = CausalConv(spec.conv_kernel, [channels], bias=spec.bias)
        super().__init__(conv.state_shape)
        self.bcx_proj = MergedColumnParallelLinear(
            parts.methods("bcx_proj"), size, [size] * 3, bias=spec.bias
        )
        self.out_proj = RowParallelLinear(parts.methods("out_proj"), size, size, bias=spec.bias)
        self.conv1d, self._thirds = conv, [channels.size] * 3
        self._convolve = ops().causal_conv1d

    @property
    def first(self) -> LinearKernel:
        return self.bcx_proj.kernel

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        before, after, x = projected.split_with_sizes(self._thirds, 1)
        conv, (states,) = self.conv1d, self._states
        mixed = self._convolve(
            x, conv.weight, conv.bias, states, *state_places(), None, before=before, after=after
        )
        return self.out_proj.kernel(mixed)
