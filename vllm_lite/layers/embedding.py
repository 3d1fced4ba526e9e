"""Token embedding and the output head, split over the ranks by vocabulary rows.

The vocabulary is padded so that every rank holds equally many rows; padding never leaves this
module: ids are below `vocab_size` and so many logits come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard, tp_group, tp_size
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.mapped_memory import KeptRows
from vllm_lite.kernels.quantized import QuantizedRows
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.head import HeadKernel, head_kernel
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor


def _vocab_shard(vocab_size: int) -> Shard:
    padded = -(-vocab_size // tp_size()) * tp_size()
    return Shard.even(padded, "vocabulary rows")


def _vocab_slots(
    weights: Mapping[str, StoredTensor], shard: Shard, vocab_size: int
) -> Iterator[NamedSlot]:
    """The rows that are no padding; a last rank may have none of them but its padding."""
    used = max(0, min(shard.size, vocab_size - shard.start))
    for name, stored in weights.items():
        stored.data[used:].zero_()
        full_shape = (vocab_size, *stored.data.shape[1:])
        starts = (shard.start,) + (0,) * (stored.data.dim() - 1)
        keep = None if stored.rows is None else partial(_keep, stored.rows, shard.size)
        yield NamedSlot("", name, WeightSlot(stored.data[:used], full_shape, starts, keep))


def _keep(kept: dict[int, QuantizedRows], size: int, rows: QuantizedRows) -> None:
    # Blocks of zeros are rows of zeros.
    padding = (0, 0, 0, size - rows.num_outputs)
    kept[0] = replace(rows, blocks=F.pad(rows.blocks, padding)) if padding[3] else rows


class VocabParallelEmbedding(nn.Module):
    """Ids to vectors."""

    table: EmbeddingTable

    def __init__(self, method: LinearMethod, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self._method = method.for_vocabulary()
        self._vocab_size = vocab_size
        self._shard = _vocab_shard(vocab_size)
        self._group = tp_group()
        self._weights = self._method.create_weights(hidden_size, self._shard.size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] int64 -> [T, N], a new tensor."""
        if self._group.size == 1:
            return self.table.lookup(input_ids)
        local = input_ids - self._shard.start
        elsewhere = (local < 0) | (local >= self._shard.size)
        hidden = self.table.lookup(local.masked_fill_(elsewhere, 0))
        return self._group.all_reduce(hidden.masked_fill_(elsewhere.unsqueeze(1), 0))

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield from _vocab_slots(self._weights, self._shard, self._vocab_size)

    def process_weights_after_loading(self) -> None:
        weights, self._weights = self._weights, {}
        self.table = self._method.make_table(weights)


class ParallelLMHead(nn.Module):
    """Vectors to logits, by rows of its own or by an embedding's."""

    kernel: LinearKernel
    _head: HeadKernel | None

    def __init__(
        self,
        method: LinearMethod,
        vocab_size: int,
        hidden_size: int,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        super().__init__()
        self._method = method.for_vocabulary()
        self._vocab_size = vocab_size
        self._shard = _vocab_shard(vocab_size)
        self._group = tp_group()
        self._tied_to = tied_to
        self._logits = KeptRows(vocab_size)
        self._weights: dict[str, StoredTensor] = {}
        if tied_to is None:
            self._weights = self._method.create_weights(hidden_size, self._shard.size)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, N] -> [R, vocab_size] float32, in memory that the next call may overwrite."""
        if self._head is not None:
            return self._head.into(hidden, self._logits.rows(len(hidden)))
        logits = self._group.all_gather(self.kernel(hidden))
        return logits if logits.shape[1] == self._vocab_size else logits[:, : self._vocab_size]

    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[R, N] -> the likeliest tokens and their logits, both [R]; see `reference.greedy_tokens`.

        Without writing the others' logits where the kernel can do without.
        """
        if self._head is not None:
            return self._head.argmax(hidden)
        return ops().greedy_tokens(self.compute_logits(hidden))

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield from _vocab_slots(self._weights, self._shard, self._vocab_size)

    def process_weights_after_loading(self) -> None:
        # Sums are float32: rounding them to the model's type would make near ties equal.
        if self._tied_to is not None:
            self.kernel = self._tied_to.table.linear_kernel(torch.float32)
        else:
            weights, self._weights = self._weights, {}
            self.kernel = self._method.process_weights_after_loading(weights, None, torch.float32)
        # Of one rank alone: several must bring their logits together.
        self._head = head_kernel(self.kernel) if self._group.size == 1 else None


class LearnedPositions(nn.Module):
    """A vector for each position, which is added to its token's."""

    def __init__(self, num_positions: int, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._rows = torch.empty(num_positions, hidden_size, dtype=dtype)
        self._ops = ops()

    def add_to(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add the rows of positions [T] int64 to hidden [T, N], in place."""
        rows = self._ops.embedding(positions, self._rows)
        return self._ops.scaled_add(hidden, rows, out=hidden)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", WeightSlot.whole(self._rows))

    def process_weights_after_loading(self) -> None:
        """The rows are used as they are."""
