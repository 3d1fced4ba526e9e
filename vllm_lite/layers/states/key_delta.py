"""Kimi Delta Attention (arXiv:2510.26692): the gated delta rule with a decay for each key.

Decays, and gates of what is read, come from products of low rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import (
    ColumnParallelLinear,
    ParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm_lite.layers.state import (
    CausalConv,
    MixerParts,
    StateMixer,
    StateSpec,
    sharded,
    state_places,
)
from vllm_lite.layers.states.delta import HeadNorm
from vllm_lite.layers.weights import NamedSlot, WeightSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDeltaSpec(StateSpec):
    """Heads of as many keys as values, which is the rank of the products too."""

    num_heads: int
    head_size: int
    conv_kernel: int
    act: str
    norm_eps: float

    def make(self, parts: MixerParts) -> KeyDeltaMixer:
        return KeyDeltaMixer(self, parts)

    @property
    def name(self) -> str:
        """Checkpoints call it as they call attention."""
        return "self_attn"


class KeyDeltaMixer(StateMixer):
    """out(norm(delta_rule(conv(q), conv(k), conv(v))) * sigmoid(gate))."""

    def __init__(self, spec: KeyDeltaSpec, parts: MixerParts) -> None:
        heads, size = Shard.even(spec.num_heads, "heads"), spec.head_size
        features = heads.scaled(size)
        conv = CausalConv(spec.conv_kernel, [features] * 3, bias=False)
        super().__init__(conv.state_shape, (heads.size, size, size))
        num_heads, width, inputs = spec.num_heads, features.full_size, parts.hidden_size

        def low_rank(name: str) -> tuple[ParallelLinear, ParallelLinear]:
            methods = (parts.methods(f"{name}_{part}_proj") for part in "ab")
            down, up = methods
            whole = ParallelLinear(down, Shard.whole(inputs), {"": Shard.whole(size)})
            return whole, ColumnParallelLinear(up, size, width)

        self.qkv_proj = QKVParallelLinear(
            parts.methods("qkv_proj"), inputs, (size, size), num_heads, num_heads
        )
        self.b_proj = ColumnParallelLinear(parts.methods("b_proj"), inputs, num_heads)
        self.f_a_proj, self.f_b_proj = low_rank("f")
        self.g_a_proj, self.g_b_proj = low_rank("g")
        self.o_proj = RowParallelLinear(parts.methods("o_proj"), width, inputs)
        self.qkv_conv1d, self.o_norm = conv, HeadNorm(heads.size, size, parts.dtype)
        # Checkpoints store a as log(-a).
        self._a = torch.empty(1, 1, heads.size, 1, dtype=torch.float32)
        self._dt_bias = torch.empty(features.size, dtype=torch.float32)
        self._heads, self._features = heads, features
        self._thirds, self._shape = [features.size] * 3, (-1, heads.size, size)
        self._spec, self._act, self._ops = spec, activation_name(spec.act), ops()

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        places, conv, shape = state_places(), self.qkv_conv1d, self._shape
        conv_states, states = self._states
        qkv = self.qkv_proj.kernel(x)
        mixed = self._ops.causal_conv1d(qkv, conv.weight, None, conv_states, *places, self._act)
        q, k, v = (part.view(shape) for part in mixed.split_with_sizes(self._thirds, 1))
        decay = self.f_b_proj.kernel(self.f_a_proj.kernel(x)).view(shape)
        beta = self.b_proj.kernel(x)
        y = self._ops.delta_rule(
            q, k, v, decay, beta, states, *places, a=self._a, dt_bias=self._dt_bias
        )
        gate, (width, *_) = self.g_b_proj.kernel(self.g_a_proj.kernel(x)), self._thirds
        spec, weight = self._spec, self.o_norm.weight
        normed = self._ops.gated_rms_norm(
            y.view(-1, width), gate, weight, spec.norm_eps, spec.head_size, "sigmoid", True
        )
        return self.o_proj.kernel(normed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        full, start = (1, 1, self._heads.full_size, 1), (0, 0, self._heads.start, 0)
        yield NamedSlot("", "A_log", WeightSlot(self._a, full, start))
        yield NamedSlot("", "dt_bias", sharded(self._dt_bias, self._features))

    def process_weights_after_loading(self) -> None:
        self._a = self._a.exp().neg_().flatten()
        self._dt_bias = self._dt_bias.view(self._shape[1:])
