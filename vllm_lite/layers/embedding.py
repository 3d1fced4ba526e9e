"""Token embedding and the output head, split over the ranks by vocabulary rows.

Each rank holds the same number of rows, the last one possibly fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard, tp_group
from vllm_lite.kernels.cpu.mapped_memory import KeptRows
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.linear import slot_of
from vllm_lite.layers.norm import NormSpec
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.quantization.head import HeadKernel, head_kernel
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor


class VocabParallelEmbedding(nn.Module):
    """Maps ids to vectors."""

    table: EmbeddingTable

    def __init__(self, method: LinearMethod, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self._method = method.for_vocabulary()
        self._shard = Shard.spread(vocab_size, "vocabulary rows")
        self._group = tp_group()
        self._first_row = self._shard.start if self._group.size > 1 else None
        self._weights = self._method.create_weights(hidden_size, self._shard.size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] int64 -> [T, N], a new tensor."""
        hidden = self.table.lookup(input_ids, self._first_row)
        return self._group.all_reduce(hidden, hidden.dtype)

    def weight_slots(self) -> Iterator[NamedSlot]:
        for suffix, stored in self._weights.items():
            yield NamedSlot("", suffix, replace(slot_of(stored, self._shard), packing=None))

    def process_weights_after_loading(self) -> None:
        weights, self._weights = self._weights, {}
        self.table = self._method.make_table(weights)


class ParallelLMHead(nn.Module):
    """Maps vectors to logits by its own rows or by those of an embedding."""

    kernel: LinearKernel
    _head: HeadKernel | None

    def __init__(
        self,
        method: LinearMethod,
        vocab_size: int,
        hidden_size: int,
        tied_to: VocabParallelEmbedding | None = None,
        scale: float = 1.0,
        soft_cap: float = 0.0,
        *,
        bias: bool = False,
    ) -> None:
        """Logits are multiplied by the positive `scale`, then become cap * tanh(x / cap)."""
        super().__init__()
        self._method = method.for_vocabulary()
        self._shard = Shard.spread(vocab_size, "vocabulary rows")
        self._group = tp_group()
        self._tied_to = tied_to
        self._logits = KeptRows(self._shard.size)
        self._scale = scale
        self._soft_cap = soft_cap
        self._ops = ops()
        self._weights: dict[str, StoredTensor] = {}
        if tied_to is None:
            self._weights = self._method.create_weights(hidden_size, self._shard.size)
        self._bias = self._method.create_bias(self._shard.size) if bias else None

    @property
    def is_tied(self) -> bool:
        """Whether it can be finished only after the embedding."""
        return self._tied_to is not None

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, N] -> [R, vocab_size] float32, in memory that the next call may overwrite."""
        if self._head is not None:
            logits = self._head.into(hidden, self._logits.rows(len(hidden)))
        else:
            logits = self.kernel(hidden)
        return self._bent(self._group.all_gather(logits, self._shard.full_size))

    def _bent(self, logits: Tensor) -> Tensor:
        """Scale and cap, in place; neither changes an order."""
        cap, scaled_add = self._soft_cap, self._ops.scaled_add
        if not cap:
            return (
                logits if self._scale == 1.0 else scaled_add(logits, None, self._scale, out=logits)
            )
        logits = scaled_add(logits, None, self._scale / cap, out=logits)
        logits = self._ops.activation(logits, "tanh", out=logits)
        return scaled_add(logits, None, cap, out=logits)

    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[R, N] -> the likeliest tokens and their logits, both [R]; see `greedy_tokens`.

        Other logits are not written to memory if the kernel supports that.
        """
        if self._head is None:
            return ops().greedy_tokens(self.compute_logits(hidden))
        tokens, largest = self._head.argmax(hidden)
        size = self._group.size
        if size == 1:
            return tokens, self._bent(largest.unsqueeze(1)).squeeze(1)
        # Ranks hold ascending ids, so that among ties the first rank has the lowest id.
        all_largest = self._group.all_gather(largest.unsqueeze(1), size)
        halves = (tokens + self._shard.start).unsqueeze(1).view(torch.float32)
        all_tokens = self._group.all_gather(halves, 2 * size).view(torch.int64)
        best, largest = ops().greedy_tokens(all_largest)
        tokens = all_tokens.gather(1, best.unsqueeze(1)).squeeze(1)
        return tokens, self._bent(largest.unsqueeze(1)).squeeze(1)

    def weight_slots(self) -> Iterator[NamedSlot]:
        stored = dict(self._weights)
        if self._bias is not None:
            stored["bias"] = StoredTensor(self._bias, output_dim=0, input_dim=None)
        for suffix, tensor in stored.items():
            yield NamedSlot("", suffix, slot_of(tensor, self._shard))

    def process_weights_after_loading(self) -> None:
        # Sums stay float32: rounding them to the model's type would create ties.
        wide, bias = torch.float32, self._bias
        if self._tied_to is not None:
            self.kernel = self._tied_to.table.linear_kernel(wide, bias)
        else:
            weights, self._weights = self._weights, {}
            self.kernel = self._method.process_weights_after_loading(weights, bias, wide)
        self._head = head_kernel(self.kernel)


class LearnedPositions(nn.Module, WeightedLayer):
    """Learned position embeddings, added to tokens' vectors."""

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


class EncoderEmbedding(nn.Module, WeightedLayer):
    """A token's vector and those of its position and its type, summed and layer-normalised.

    Whole on every rank.
    """

    def __init__(
        self, num_rows: tuple[int, int, int], size: int, norm: NormSpec, dtype: torch.dtype
    ) -> None:
        """`num_rows`: words, positions and types; without positions or types there are 0."""
        super().__init__()
        words, *others = (torch.empty(count, size, dtype=dtype) for count in num_rows)
        self._words = words
        self._places, self._types = (rows if len(rows) else None for rows in others)
        self._weight = torch.empty(size, dtype=dtype)
        self._bias = torch.empty(size, dtype=dtype) if norm.bias else None
        self._eps = norm.eps
        self._sum = ops().encoder_embedding

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] int64 of word + type * number of words, and positions [T] int64 -> [T, N]."""
        return self._sum(
            input_ids,
            positions,
            self._words,
            self._places,
            self._types,
            self._weight,
            self._bias,
            self._eps,
        )

    def weight_slots(self) -> Iterator[NamedSlot]:
        tables = {"words": self._words, "places": self._places, "types": self._types}
        for name, rows in tables.items():
            if rows is not None:
                yield NamedSlot(name, "weight", WeightSlot.whole(rows))
        yield NamedSlot("norm", "weight", WeightSlot.whole(self._weight))
        if self._bias is not None:
            yield NamedSlot("norm", "bias", WeightSlot.whole(self._bias))
