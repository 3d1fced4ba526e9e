"""Which blocks a layer still needs: the rule of full and of sliding-window attention.

All layers of a group follow one rule and share one block table. Knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vllm_lite.core.block import Block
from vllm_lite.core.block_pool import BlockPool
from vllm_lite.core.kv_spec import KVCacheSpec


class AttentionRule(Protocol):
    """What the KV manager asks about a group of layers."""

    def max_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` holds at a time.

        A step computes at most `max_step_tokens` of its tokens.
        """

    def find_hits(self, pool: BlockPool, hashes: Sequence[bytes]) -> list[Block]:
        """The table entries of the longest prefix of `hashes` that is computed already."""

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Index of the first block that a later token can still see."""


class FullAttention:
    """Every token sees all before it: nothing is given back before the end."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def max_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """All of them."""
        return -(-num_tokens // self._block_size)

    def find_hits(self, pool: BlockPool, hashes: Sequence[bytes]) -> list[Block]:
        """From the front, up to the first block that is missing."""
        hits = []
        for content_hash in hashes:
            block = pool.find(content_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Always the first."""
        return 0


class SlidingWindow:
    """A token sees the last `window` tokens, itself included: older blocks are given back."""

    def __init__(self, block_size: int, window: int) -> None:
        self._block_size = block_size
        self._window = window

    def max_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """The window, one step's tokens, and one block more as neither is aligned."""
        live = self._window - 1 + min(num_tokens, max_step_tokens)
        return min(-(-num_tokens // self._block_size), -(-live // self._block_size) + 1)

    def find_hits(self, pool: BlockPool, hashes: Sequence[bytes]) -> list[Block]:
        """The longest prefix whose last window is there; null blocks stand before that.

        Searched from the back: only a prefix's last blocks have to be cached still.
        """
        needed = -(-(self._window - 1) // self._block_size)
        run: list[Block] = []
        for index in range(len(hashes) - 1, -1, -1):
            if len(run) == needed:
                break
            block = pool.find(hashes[index])
            if block is None:
                run.clear()
            else:
                run.append(block)
        else:
            return run[::-1]  # a prefix within one window: all of its blocks are there
        end = index + 1 + needed
        return [pool.null_block] * (end - needed) + run[::-1]

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """That of the oldest token in the next token's window."""
        return max(0, num_computed_tokens - self._window + 1) // self._block_size


def attention_rule(spec: KVCacheSpec, block_size: int) -> AttentionRule:
    """The rule that the spec's layers follow."""
    if spec.sliding_window is None:
        return FullAttention(block_size)
    return SlidingWindow(block_size, spec.sliding_window)
