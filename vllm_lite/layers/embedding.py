"""Token embedding and the output head, split over the ranks by vocabulary rows.

The vocabulary is padded so that every rank holds equally many rows; padding never leaves this
module: ids are below `vocab_size` and so many logits come out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard, tp_group, tp_size
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel, LinearMethod


def _vocab_shard(vocab_size: int) -> Shard:
    padded = -(-vocab_size // tp_size()) * tp_size()
    return Shard.even(padded, "vocabulary rows")


def _vocab_slot(rows: Tensor, shard: Shard, vocab_size: int) -> WeightSlot:
    """The rows that are no padding; a last rank may have none of them but its padding."""
    used = max(0, min(shard.size, vocab_size - shard.start))
    rows[used:].zero_()
    full_shape = (vocab_size, *rows.shape[1:])
    return WeightSlot(rows[:used], full_shape, (shard.start,) + (0,) * (rows.dim() - 1))


class VocabParallelEmbedding(nn.Module):
    """Ids to vectors."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._shard = _vocab_shard(vocab_size)
        self._group = tp_group()
        self._ops = ops()
        self.rows = torch.empty(self._shard.size, hidden_size, dtype=dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] int64 -> [T, N], a new tensor."""
        if self._group.size == 1:
            return self._ops.embedding(input_ids, self.rows)
        local = input_ids - self._shard.start
        elsewhere = (local < 0) | (local >= self._shard.size)
        hidden = self._ops.embedding(local.masked_fill_(elsewhere, 0), self.rows)
        return self._group.all_reduce(hidden.masked_fill_(elsewhere.unsqueeze(1), 0))

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "weight", _vocab_slot(self.rows, self._shard, self._vocab_size))

    def process_weights_after_loading(self) -> None:
        """Rows are looked up as they are."""


class ParallelLMHead(nn.Module):
    """Vectors to logits, by rows of its own or by an embedding's.

    A tied head whose method repacks holds a second copy of the embedding's rows: lookups need
    plain rows, and the product is twice as fast on packed ones.
    """

    kernel: LinearKernel

    def __init__(
        self,
        method: LinearMethod,
        vocab_size: int,
        hidden_size: int,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        super().__init__()
        self._method = method
        self._vocab_size = vocab_size
        self._shard = _vocab_shard(vocab_size)
        self._group = tp_group()
        if tied_to is None:
            stored = method.create_weights(hidden_size, self._shard.size)
            self._weights = {name: tensor.data for name, tensor in stored.items()}
        else:
            self._weights = {"weight": tied_to.rows}
        self._is_tied = tied_to is not None

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, N] -> [R, vocab_size] float32."""
        logits = self._group.all_gather(self.kernel(hidden))
        return logits if logits.shape[1] == self._vocab_size else logits[:, : self._vocab_size]

    def weight_slots(self) -> Iterator[NamedSlot]:
        if not self._is_tied:
            for name, tensor in self._weights.items():
                yield NamedSlot("", name, _vocab_slot(tensor, self._shard, self._vocab_size))

    def process_weights_after_loading(self) -> None:
        weights, self._weights = self._weights, {}
        # Sums are float32: rounding them to the model's type would make near ties equal.
        self.kernel = self._method.process_weights_after_loading(weights, None, torch.float32)
