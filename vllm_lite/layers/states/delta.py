"""Linear attention by the gated delta rule (Yang et al., 2024), and its relatives.

Queries, keys and values pass a convolution; a state of each head maps keys to values. Kimi's has
a decay for each key, from a product of low rank as its output gate is (Kimi Team, 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ParallelLinear,
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
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel


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
    # Of the output gate.
    gate_act: str = "silu"
    # A share of beta up to 2 lets a state's eigenvalues become negative.
    beta_scale: float = 1.0
    # Each key of a head has a decay; decays and gates are products of rank `value_size`.
    has_decay_of_keys: bool = False

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
        """Repeat the weight for each head."""
        self.weight = self._stored.repeat(self._num_heads)


class LowRank(nn.Module):
    """A product by a narrow matrix, then by a wide one; every rank has the narrow one."""

    def __init__(self, hidden_size: int, rank: int, width: int, parts: MixerParts) -> None:
        super().__init__()
        narrow = {"": Shard.whole(rank)}
        self.a_proj = ParallelLinear(parts.methods("a_proj"), Shard.whole(hidden_size), narrow)
        self.b_proj = ColumnParallelLinear(parts.methods("b_proj"), rank, width)

    def product(self, x: Tensor) -> Tensor:
        """[T, N] -> [T, width of this rank]."""
        return self.b_proj.kernel(self.a_proj.kernel(x))


class DeltaMixer(StateMixer):
    """out(norm(delta_rule(conv(q), conv(k), conv(v))) * act(z))."""

    def __init__(self, spec: DeltaSpec, parts: MixerParts) -> None:
        heads = Shard.even(spec.num_heads, "heads")
        keys = Shard.even(spec.num_key_heads, "heads of keys").scaled(spec.key_size)
        values = heads.scaled(spec.value_size)
        conv = CausalConv(spec.conv_kernel, [keys, keys, values], bias=False)
        super().__init__(conv.state_shape, (heads.size, spec.key_size, spec.value_size))
        widths, methods = [keys.full_size, keys.full_size, values.full_size], parts.methods
        num_heads, size = spec.num_heads, parts.hidden_size
        self._is_low_rank = spec.has_decay_of_keys
        if not self._is_low_rank:
            widths.append(values.full_size)
            self.ba_proj = MergedColumnParallelLinear(methods("ba_proj"), size, [num_heads] * 2)
        self.qkvz_proj = MergedColumnParallelLinear(methods("qkvz_proj"), size, widths)
        if self._is_low_rank:
            self.beta_proj = ColumnParallelLinear(methods("beta_proj"), size, num_heads)
            rank = spec.value_size
            self.decay = LowRank(size, rank, num_heads * spec.key_size, parts.at("decay"))
            self.gate = LowRank(size, rank, values.full_size, parts.at("gate"))
            self._decays_shape = -1, heads.size, spec.key_size
        self.out_proj = RowParallelLinear(methods("out_proj"), values.full_size, size)
        self.qkv_conv1d = conv
        self.norm = HeadNorm(heads.size, spec.value_size, parts.dtype)
        # a and dt_bias; checkpoints store a as log(-a).
        self._heads = heads
        self._a = torch.empty(heads.size, dtype=torch.float32)
        decays = heads.scaled(spec.key_size) if self._is_low_rank else heads
        self._decays, self._dt_bias = decays, torch.empty(decays.size, dtype=torch.float32)
        self._halves = [heads.size, heads.size]
        self._split = [conv.state_shape[1], values.size]
        self._conv_split = [keys.size, keys.size, values.size]
        self._key_shape = -1, keys.size // spec.key_size, spec.key_size
        self._value_shape = -1, heads.size, spec.value_size
        self._width = values.size
        self._spec, self._ops = spec, ops()
        self._act, self._gate_act = activation_name(spec.act), spec.gate_act

    @property
    def first(self) -> LinearKernel:
        """Return x itself: several products read the same rows."""
        return _as_they_are

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        places, spec, conv = state_places(), self._spec, self.qkv_conv1d
        conv_states, states = self._states
        qkv, z, beta, decay, dt_bias = self._operands(projected)
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
            dt_bias=dt_bias,
            beta_scale=spec.beta_scale,
        )
        normed = self._ops.gated_rms_norm(
            y.view(-1, self._width),
            z,
            self.norm.weight,
            spec.norm_eps,
            spec.value_size,
            self._gate_act,
            True,
        )
        return self.out_proj.kernel(normed)

    def _operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Inputs of the convolution, output gates, betas, decays and what is added to these."""
        if self._is_low_rank:
            shape = self._decays_shape
            decay, z = self.decay.product(x).view(shape), self.gate.product(x)
            beta = self.beta_proj.kernel(x)
            return self.qkvz_proj.kernel(x), z, beta, decay, self._dt_bias.view(shape[1:])
        qkv, z = self.qkvz_proj.kernel(x).split_with_sizes(self._split, 1)
        beta, decay = self.ba_proj.kernel(x).split_with_sizes(self._halves, 1)
        return qkv, z, beta, decay, self._dt_bias

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "A_log", sharded(self._a, self._heads))
        yield NamedSlot("", "dt_bias", sharded(self._dt_bias, self._decays))

    def process_weights_after_loading(self) -> None:
        """Compute a from its stored logarithm."""
        self._a.exp_().neg_()


def _as_they_are(x: Tensor) -> Tensor:
    return x
