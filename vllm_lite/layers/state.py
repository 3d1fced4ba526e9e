"""A state-space mixer (Mamba 2: Dao and Gu, 2024), with a state of fixed size for each request.

A convolution over the last inputs, a recurrence in each head, and a gated norm. The slots to read
and write come from the current AttentionMetadata. Groups of heads are split over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vllm_lite.core.kv_spec import StateCacheSpec
from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.metadata import current_metadata
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel, LinearMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Sizes of a state-space mixer."""

    cache: StateCacheSpec
    act: str
    norm_eps: float
    # Smallest and largest time step.
    dt_limit: tuple[float, float]
    # Whether the convolution, and both linear layers, have a bias.
    conv_bias: bool = True
    bias: bool = False

    def on_this_rank(self) -> StateSpec:
        """The sizes of this rank's part."""
        heads = Shard.even(self.cache.num_heads, "heads").size
        groups = Shard.even(self.cache.num_groups, "groups of heads").size
        return replace(self, cache=replace(self.cache, num_heads=heads, num_groups=groups))


class StateCache(NamedTuple):
    """One layer's float32 states by slot, dense in each slot."""

    conv: Tensor  # [S, K - 1, C]
    recurrent: Tensor  # [S, H, N, P]


class CausalConv(nn.Module):
    """The weights of a depthwise convolution."""

    def __init__(self, kernel_size: int, shards: list[Shard], *, bias: bool) -> None:
        super().__init__()
        self._shards = shards
        size = sum(shard.size for shard in shards)
        self._stored = torch.empty(size, 1, kernel_size, dtype=torch.float32)
        self.weight = torch.empty(0)
        self.bias = torch.empty(size, dtype=torch.float32) if bias else None

    def weight_slots(self) -> Iterator[NamedSlot]:
        stored = {"weight": self._stored} | ({} if self.bias is None else {"bias": self.bias})
        offset = 0
        for i, shard in enumerate(self._shards):
            for suffix, tensor in stored.items():
                part = tensor.narrow(0, offset, shard.size)
                slot = _sharded(part, shard)
                yield NamedSlot(str(i), suffix, slot)
            offset += shard.size

    def process_weights_after_loading(self) -> None:
        """Transpose the weight to [K, C]."""
        self.weight = self._stored[:, 0].t().contiguous()


class GatedNorm(nn.Module):
    """The weight of a gated norm of each group of heads."""

    def __init__(self, features: Shard, dtype: torch.dtype) -> None:
        super().__init__()
        self._features = features
        self.weight = torch.empty(features.size, dtype=dtype)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", _sharded(self.weight, self._features))

    def process_weights_after_loading(self) -> None:
        """Do nothing: the weight is used as it is."""


class StateMixer(nn.Module):
    """out(norm(scan(conv(x)) * act(z))), where one linear layer computes z, x, b, c and dt."""

    def __init__(
        self,
        spec: StateSpec,
        hidden_size: int,
        in_method: LinearMethod,
        out_method: LinearMethod,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        whole, own = spec.cache, spec.on_this_rank()
        self._sizes = sizes = own.cache
        inner, vectors = (
            whole.num_heads * whole.head_size,
            whole.num_groups * whole.state_size,
        )
        self.in_proj = MergedColumnParallelLinear(
            in_method,
            hidden_size,
            [inner, inner, vectors, vectors, whole.num_heads],
            bias=spec.bias,
        )
        self.out_proj = RowParallelLinear(out_method, inner, hidden_size, bias=spec.bias)
        self._heads = Shard.even(whole.num_heads, "heads")
        features = self._heads.scaled(whole.head_size)
        channels = Shard.even(whole.num_groups, "groups of heads").scaled(whole.state_size)
        self.conv1d = CausalConv(
            whole.conv_kernel, [features, channels, channels], bias=spec.conv_bias
        )
        self.norm = GatedNorm(features, dtype)
        # a, d and dt_bias; checkpoints store a as log(-a).
        self._a, self._d, self._dt_bias = torch.empty(3, sizes.num_heads, dtype=torch.float32)
        self._inner = features.size
        self._split = [features.size, sizes.num_channels, sizes.num_heads]
        self._conv_split = [features.size, channels.size, channels.size]
        self._spec, self._act = own, activation_name(spec.act)
        self._states = StateCache(torch.empty(0), torch.empty(0))
        self._ops = ops()

    def bind_state(self, states: StateCache) -> None:
        """Use the tensors of `cache` from now on."""
        self._states = states

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`."""
        return self.in_proj.kernel

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        """Positions [T] and the output of `first` -> [T, N]."""
        step, sizes, spec = current_metadata(), self._sizes, self._spec
        assert step.states is not None
        places = step.query_start_loc, *step.states
        gate, inputs, dt = projected.split_with_sizes(self._split, 1)
        conv, states = self.conv1d, self._states
        mixed = self._ops.causal_conv1d(
            inputs, conv.weight, conv.bias, states.conv, *places, self._act
        )
        x, b, c = mixed.split_with_sizes(self._conv_split, 1)
        y = self._ops.selective_scan(
            x.view(-1, sizes.num_heads, sizes.head_size),
            dt,
            b.view(-1, sizes.num_groups, sizes.state_size),
            c.view(-1, sizes.num_groups, sizes.state_size),
            states.recurrent,
            *places,
            a=self._a,
            d=self._d,
            dt_bias=self._dt_bias,
            dt_limit=spec.dt_limit,
        )
        normed = self._ops.gated_rms_norm(
            y.view(-1, self._inner),
            gate,
            self.norm.weight,
            spec.norm_eps,
            self._inner // sizes.num_groups,
            self._act,
        )
        return self.out_proj.kernel(normed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        for name, numbers in (("A_log", self._a), ("D", self._d), ("dt_bias", self._dt_bias)):
            yield NamedSlot("", name, _sharded(numbers, self._heads))

    def process_weights_after_loading(self) -> None:
        """Compute a from its stored logarithm."""
        self._a.exp_().neg_()


def _sharded(tensor: Tensor, shard: Shard) -> WeightSlot:
    """A slot for this rank's part along the first dimension."""
    starts = (shard.start, *(0 for _ in tensor.shape[1:]))
    return WeightSlot(tensor, (shard.full_size, *tensor.shape[1:]), starts)
