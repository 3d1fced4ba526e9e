"""A gated recurrence with one number for each channel (RG-LRU: De et al., 2024).

It reads a convolution of the last inputs, and is multiplied by an activated gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.linear import PackedHeads
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.state import (
    CausalConv,
    MixerParts,
    ProjectedMixer,
    StateSpec,
    sharded,
    state_places,
)
from vllm_lite.layers.weights import NamedSlot

# Of the logarithm of what is kept of a state.
_SHARPNESS = -8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceSpec(StateSpec):
    """Heads of channels; a channel's gates read those of its head."""

    num_heads: int
    head_size: int
    conv_kernel: int
    act: str

    def make(self, parts: MixerParts) -> RecurrenceMixer:
        return RecurrenceMixer(self, parts)


class RecurrenceMixer(ProjectedMixer):
    """out(recurrence(conv(x)) * act(z)), where one linear layer computes z and x."""

    # Of each head: the gates of inputs and of decays.
    input_gate: PackedHeads
    decay_gate: PackedHeads

    def __init__(self, spec: RecurrenceSpec, parts: MixerParts) -> None:
        heads, size, methods = Shard.even(spec.num_heads, "heads"), spec.head_size, parts.methods
        channels = heads.scaled(size)
        conv = CausalConv(spec.conv_kernel, [channels], bias=True)
        super().__init__(conv.state_shape, (channels.size,))
        width = channels.full_size
        self.in_proj = MergedColumnParallelLinear(
            methods("in_proj"), parts.hidden_size, [width, width], bias=True
        )
        self.out_proj = RowParallelLinear(methods("out_proj"), width, parts.hidden_size, bias=True)
        self.conv1d, self._heads, self._channels = conv, heads, channels
        self._rate = torch.empty(channels.size, dtype=torch.float32)
        self._biases = torch.empty(2, heads.size, size, dtype=torch.float32)
        self._gates = torch.empty(2, heads.size, size, size, dtype=parts.dtype)
        self._halves, self._shape = [channels.size] * 2, (-1, heads.size, size)
        self._act, self._ops = activation_name(spec.act), ops()

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        places, conv = state_places(), self.conv1d
        conv_states, states = self._states
        z, inputs = projected.split_with_sizes(self._halves, 1)
        x = self._ops.causal_conv1d(inputs, conv.weight, conv.bias, conv_states, *places, None)
        heads, width = x.view(self._shape), self._halves[0]
        y = self._ops.gated_recurrence(
            x,
            self._ops.head_linear(heads, self.input_gate).view(-1, width),
            self._ops.head_linear(heads, self.decay_gate).view(-1, width),
            states,
            *places,
            rate=self._rate,
            gate_bias=self._biases[0],
            decay_bias=self._biases[1],
        )
        return self.out_proj.kernel(self._ops.gated_product(y, z, self._act))

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "recurrent_param", sharded(self._rate, self._channels))
        for i, name in enumerate(("input_gate", "recurrent_gate")):
            yield NamedSlot("", f"{name}_weight", sharded(self._gates[i], self._heads))
            yield NamedSlot("", f"{name}_bias", sharded(self._biases[i], self._heads))

    def process_weights_after_loading(self) -> None:
        """Compute the rate from its parameter; pack the gates, whose inputs are stored first."""
        self._rate = _SHARPNESS * F.softplus(self._rate)
        self.input_gate, self.decay_gate = (
            self._ops.pack_heads(gate.transpose(1, 2).contiguous()) for gate in self._gates
        )
        self._biases, self._gates = self._biases.flatten(1), torch.empty(0)
