"""Linear attention by the gated delta rule (Yang et al., 2024).

Queries, keys and values pass a convolution; a state of each head maps keys to values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.state import (
    CausalConv,
    MixerParts,
    StateMixer,
    StateSpec,
    sharded,
    state_places,
)
from vllm_lite.layers.weights import NamedSlot, WeightSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec(StateSpec):
    """Heads, whose keys may be shared by groups of them."""

    num_heads: int
    num_key_heads: int
    key_size: int
    value_size: int
    conv_kernel: int
    act: str
    norm_eps: float
    # A share of beta up to 2 lets a state's eigenvalues become negative.
    beta_scale: float = 1.0

    def make(self, parts: MixerParts) -> DeltaMixer:
        return DeltaMixer(self, parts)


class HeadNorm(nn.Module):
    """The weight of a norm of each head, the same for all."""

    def __init__(self, num_heads: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._stored = torch.empty(size, dtype=dtype)
        self._num_heads = num_heads
        self.weight = torch.empty(0)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", WeightSlot.whole(self._stored))

    def process_weights_after_loading(self) -> None:
        self.weight = self._stored.repeat(self._num_heads)


class DeltaMixer(StateMixer):
    """out(norm(delta_rule(conv(q), conv(k), conv(v))) * act(z))."""

    def __init__(self, spec: DeltaSpec, parts: MixerParts) -> None:
        heads = Shard.even(spec.num_heads, "heads")
        keys = Shard.even(spec.num_key_heads, "heads of keys").scaled(spec.key_size)
        values = heads.scaled(spec.value_size)
        conv = CausalConv(spec.conv_kernel, [keys, keys, values], bias=False)
        super().__init__(conv.state_shape, (heads.size, spec.key_size, spec.value_size))
        widths = [shard.full_size for shard in (keys, keys, values, values)]
        num_heads, size, methods = spec.num_heads, parts.hidden_size, parts.methods
        self.qkvz_proj = MergedColumnParallelLinear(methods("qkvz_proj"), size, widths)
        self.ba_proj = MergedColumnParallelLinear(methods("ba_proj"), size, [num_heads] * 2)
        self.out_proj = RowParallelLinear(methods("out_proj"), values.full_size, size)
        self.qkv_conv1d = conv
        self.norm = HeadNorm(heads.size, spec.value_size, parts.dtype)
        # a and dt_bias; checkpoints store a as log(-a).
        self._heads = heads
        self._a, self._dt_bias = torch.empty(2, heads.size, dtype=torch.float32)
        self._halves = [heads.size, heads.size]
        self._split = [conv.state_shape[1], values.size]
        self._conv_split = [keys.size, keys.size, values.size]
        self._key_shape = -1, keys.size // spec.key_size, spec.key_size
        self._value_shape = -1, heads.size, spec.value_size
        self._width = values.size
        self._spec, self._ops = spec, ops()
        self._act = activation_name(spec.act)

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        places, spec, conv = state_places(), self._spec, self.qkv_conv1d
        conv_states, states = self._states
        qkv, z = self.qkvz_proj.kernel(projected).split_with_sizes(self._split, 1)
        beta, decay = self.ba_proj.kernel(projected).split_with_sizes(self._halves, 1)
        mixed = self._ops.causal_conv1d(qkv, conv.weight, None, conv_states, *places, self._act)
        q, k, v = mixed.split_with_sizes(self._conv_split, 1)
        y = self._ops.delta_rule(
            q.view(self._key_shape),
            k.view(self._key_shape),
            v.view(self._value_shape),
            decay,
            beta,
            states,
            *places,
            a=self._a,
            dt_bias=self._dt_bias,
            beta_scale=spec.beta_scale,
        )
        normed = self._ops.gated_rms_norm(
            y.view(-1, self._width),
            z,
            self.norm.weight,
            spec.norm_eps,
            spec.value_size,
            norm_first=True,
        )
        return self.out_proj.kernel(normed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "A_log", sharded(self._a, self._heads))
        yield NamedSlot("", "dt_bias", sharded(self._dt_bias, self._heads))

    def process_weights_after_loading(self) -> None:
        self._a.exp_().neg_()
