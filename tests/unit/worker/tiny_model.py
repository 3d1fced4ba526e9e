"""A model small enough to read: one attention layer over the real cache, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tests.builders import alike_layers
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.kernels.metadata import current_metadata
from vllm_lite.kernels.reference.sampling import greedy_tokens
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.state import StateCache

HEADS, HEAD_SIZE = 2, 8
WIDTH = HEADS * HEAD_SIZE


class TinyModel(nn.Module):
    """Embedding, positions, one paged attention layer, output head."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.embedding = weight(vocab_size, WIDTH)
        self.places = weight(512, WIDTH)
        self.mix = weight(3, WIDTH, WIDTH) / WIDTH**0.5
        self.caches: tuple[Tensor, Tensor] | None = None
        # Most rows of logits asked for at a time; a test may look.
        self.most_logit_rows = 0
        # Token whose presence as an input makes a row's logits not a number.
        self.poison: int | None = None

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        assert self.caches is not None
        metadata, (keys, values) = current_metadata(), self.caches
        hidden = self.embedding[input_ids] + self.places[positions]
        query, key, value = ((hidden @ w).view(-1, HEADS, HEAD_SIZE) for w in self.mix)
        size = keys.shape[2]
        is_kept = metadata.slot_mappings[0] >= 0
        slots = metadata.slot_mappings[0][is_kept]
        block, offset = slots // size, slots % size
        keys[block, :, offset] = key[is_kept]
        values[block, :, offset] = value[is_kept]
        mixed = torch.empty_like(query)
        starts = metadata.query_start_loc.tolist()
        for row, length in enumerate(metadata.seq_lens.tolist()):
            blocks = metadata.block_tables[0][row].long()
            # [M, K, S, D] -> [K, length, D]
            seen_keys, seen_values = (
                cache[blocks].transpose(1, 2).flatten(0, 1)[:length].transpose(0, 1)
                for cache in (keys, values)
            )
            own = slice(starts[row], starts[row + 1])
            scores = query[own].transpose(0, 1) @ seen_keys.transpose(1, 2)
            at = torch.arange(length - scores.shape[1], length)
            scores = scores.masked_fill(torch.arange(length) > at[:, None], float("-inf"))
            mixed[own] = (scores.softmax(-1) @ seen_values).transpose(0, 1)
        hidden = hidden + mixed.flatten(1)
        if self.poison is not None:
            hidden[input_ids == self.poison] = float("nan")
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.most_logit_rows = max(self.most_logit_rows, len(hidden))
        return hidden @ self.embedding.T

    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return greedy_tokens(self.compute_logits(hidden))

    def kv_cache_spec(self) -> KVCacheSpec:
        return alike_layers(1, HEADS, HEAD_SIZE, "float32")

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        (self.caches,) = (cache[:2] for cache in caches)

    def as_module(self) -> nn.Module:
        return self
