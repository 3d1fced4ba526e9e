"""The tensor-parallel group that this process belongs to, and its collectives.

Layers derive their shapes from `tp_rank()` and `tp_size()` and combine through `all_reduce` and
`all_gather`; they use the number of ranks for nothing else. Alone, a process is rank 0 of 1 and
the collectives return their argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.errors import UsageError


class TensorParallelGroup(Protocol):
    """Ranks that each hold a part of every layer."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of every rank's dense `x` [T, N], on every rank, rounded once to `dtype`."""

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        """Every rank's float32 `x` [R, W] side by side, in rank order: [R, width].

        W is that of `Shard.spread(width)`. The result may lie where the next call writes.
        """


@dataclass(frozen=True, slots=True)
class SingleRank:
    """The group of a single process."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        return x


_group: TensorParallelGroup = SingleRank()


def tp_group() -> TensorParallelGroup:
    """The group of this process."""
    return _group


def tp_rank() -> int:
    """This process's place in its tensor-parallel group, from 0."""
    return _group.rank


def tp_size() -> int:
    """The number of ranks that share each layer."""
    return _group.size


@contextmanager
def tensor_parallel(group: TensorParallelGroup) -> Iterator[None]:
    """Build and run layers as a member of `group`."""
    global _group
    previous, _group = _group, group
    try:
        yield
    finally:
        _group = previous


@contextmanager
def in_turn(limit: int | None) -> Iterator[None]:
    """Let at most `limit` ranks at a time pass, the lowest first; None: all at once.

    All ranks of the group must call it.
    """
    limit = limit or _group.size
    for turn in range(-(-_group.size // limit)):
        if turn:  # once the ranks of the turn before are here
            _group.all_gather(torch.zeros(1, 1), _group.size)
        if turn == _group.rank // limit:
            yield


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's `size` features from `start`, out of `full_size`."""

    full_size: int
    start: int
    size: int

    @classmethod
    def whole(cls, full_size: int) -> Shard:
        """Every rank holds all of it."""
        return cls(full_size, 0, full_size)

    @classmethod
    def even(cls, full_size: int, what: str) -> Shard:
        """Each rank holds an equal part; raises UsageError naming `what` if there is none."""
        size, rest = divmod(full_size, tp_size())
        if rest:
            raise UsageError(
                f"{full_size} {what} do not divide among --tensor-parallel-size {tp_size()}"
            )
        return cls(full_size, tp_rank() * size, size)

    @classmethod
    def spread(cls, full_size: int, what: str) -> Shard:
        """Each rank holds as many, the last maybe fewer; raises UsageError if it has none."""
        size = -(-full_size // tp_size())
        start = tp_rank() * size
        if (tp_size() - 1) * size >= full_size:
            raise UsageError(
                f"{full_size} {what} are too few for --tensor-parallel-size {tp_size()}"
            )
        return cls(full_size, start, min(size, full_size - start))

    def scaled(self, factor: int) -> Shard:
        """The same part in units `factor` times smaller (heads to rows)."""
        return Shard(self.full_size * factor, self.start * factor, self.size * factor)

    def in_items(self, per_item: int) -> Shard:
        """The same part counted in items of `per_item` features, the last item of all maybe less.

        Raises UsageError where the part ends within an item.
        """
        end = self.start + self.size
        if self.start % per_item or (end % per_item and end != self.full_size):
            raise UsageError(
                f"features {self.start} to {end} are no whole groups of {per_item}, as the "
                "checkpoint stores them; use a smaller --tensor-parallel-size"
            )
        first, last = self.start // per_item, -(-end // per_item)
        return Shard(-(-self.full_size // per_item), first, last - first)


def head_shards(num_heads: int, num_kv_heads: int) -> tuple[Shard, Shard]:
    """This rank's query heads and key-value heads; the latter repeat where ranks outnumber them."""
    query = Shard.even(num_heads, "attention heads")
    if num_kv_heads >= tp_size():
        return query, Shard.even(num_kv_heads, "key-value heads")
    if tp_size() % num_kv_heads:
        raise UsageError(
            f"--tensor-parallel-size {tp_size()} is not a multiple of the model's "
            f"{num_kv_heads} key-value heads"
        )
    return query, Shard(num_kv_heads, tp_rank() * num_kv_heads // tp_size(), 1)
