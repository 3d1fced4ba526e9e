"""Mixers with a state of fixed size for each request; each kind is a module of layers/states.

A kind is a StateSpec, plain data that makes its mixer. The slots to read and write come from the
current AttentionMetadata. Heads or channels are split over ranks.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vllm_lite.core.kv_spec import StateCacheSpec
from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.metadata import current_metadata
from vllm_lite.layers.linear import ParallelLinear
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.quantization.method import LinearKernel, LinearMethod, as_they_are

# One layer's float32 states by slot, dense in each slot: a tensor [S, *shape] for each shape.
StateCache = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class MixerParts:
    """Options of building a mixer, beside its own sizes."""

    hidden_size: int
    # By the name of one of the mixer's layers.
    methods: Callable[[str], LinearMethod]
    dtype: torch.dtype


class StateSpec(metaclass=ABCMeta):
    """Sizes and options of one kind of mixer."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The submodule of a layer that the mixer is."""
        return "mixer"

    @abstractmethod
    def make(self, parts: MixerParts) -> StateMixer:
        """This rank's part of the mixer."""


class StatePlaces(NamedTuple):
    """The arguments of every operation with states; see kernels/reference/state.py."""

    query_start_loc: Tensor
    state_in: Tensor
    state_out: Tensor


class StateMixer(nn.Module, metaclass=ABCMeta):
    """A mixer of one layer, and the states of its requests."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        """`shapes` are those of a request's state on this rank."""
        super().__init__()
        self.cache_spec = StateCacheSpec(shapes)
        self._states: StateCache = ()

    def bind_state(self, states: StateCache) -> None:
        self._states = states

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`: here x itself, which several products may read."""
        return as_they_are

    @abstractmethod
    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        """Positions [T] and the output of `first` -> [T, N]."""


class ProjectedMixer(StateMixer):
    """A mixer whose inputs come from one linear layer."""

    in_proj: ParallelLinear

    @property
    def first(self) -> LinearKernel:
        return self.in_proj.kernel


class Mixer(Protocol):
    """One of the kinds of mixers: attention, or one with a state."""

    @property
    def first(self) -> LinearKernel: ...

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor: ...


class MixersBeside:
    """The sum of two mixers that read the same rows."""

    def __init__(self, one: Mixer, other: Mixer) -> None:
        self._one, self._other, self._add = one, other, ops().scaled_add
        self.first = as_they_are

    def forward(self, positions: Tensor, normed: Tensor) -> Tensor:
        """Positions [T] and rows [T, N] -> [T, N]."""
        one, other = self._one, self._other
        mixed = one.forward(positions, one.first(normed))
        return self._add(mixed, other.forward(positions, other.first(normed)), out=mixed)


def state_places() -> StatePlaces:
    step = current_metadata()
    assert step.states is not None
    return StatePlaces(step.query_start_loc, *step.states)


class CausalConv(nn.Module):
    """The weights of a depthwise convolution."""

    def __init__(self, kernel_size: int, shards: list[Shard], *, bias: bool) -> None:
        super().__init__()
        self._shards = shards
        size = sum(shard.size for shard in shards)
        self.state_shape = (kernel_size - 1, size)
        self._stored = torch.empty(size, 1, kernel_size, dtype=torch.float32)
        self.weight = torch.empty(0)
        self.bias = torch.empty(size, dtype=torch.float32) if bias else None

    def weight_slots(self) -> Iterator[NamedSlot]:
        stored = {"weight": self._stored} | ({} if self.bias is None else {"bias": self.bias})
        offset = 0
        for i, shard in enumerate(self._shards):
            for suffix, tensor in stored.items():
                part = tensor.narrow(0, offset, shard.size)
                yield NamedSlot(str(i), suffix, sharded(part, shard))
            offset += shard.size

    def process_weights_after_loading(self) -> None:
        """Transpose the weight to [K, C]."""
        self.weight = self._stored[:, 0].t().contiguous()


class GatedNorm(nn.Module, WeightedLayer):
    """The weight of a gated norm of each group of heads."""

    def __init__(self, features: Shard, dtype: torch.dtype) -> None:
        super().__init__()
        self._features = features
        self.weight = torch.empty(features.size, dtype=dtype)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", sharded(self.weight, self._features))


def sharded(tensor: Tensor, shard: Shard) -> WeightSlot:
    """A slot for this rank's part along the first dimension."""
    starts = (shard.start, *(0 for _ in tensor.shape[1:]))
    return WeightSlot(tensor, (shard.full_size, *tensor.shape[1:]), starts)
