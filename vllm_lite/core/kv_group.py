"""Groups of layers that share block tables, and the rules by which they need blocks.

All layers of a group follow one rule, full or sliding-window attention, and their keys and values
of a block lie in one page. Pages of all groups have one size, so that any group may take any page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_lite.core.block import Block
from vllm_lite.core.kv_spec import KVCacheSpec

# The block that holds a content, if one does.
Find = Callable[[bytes], Block | None]
# Largest share of the pages' bytes that padding may waste so that all groups share one page size.
_MAX_IDLE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers, by their numbers, whose keys and values of one block lie in one page."""

    layers: tuple[int, ...]
    sliding_window: int | None
    bytes_per_token: int


def cache_groups(spec: KVCacheSpec) -> tuple[CacheGroup, ...]:
    """The groups of `spec`; one where all layers follow one rule, none without attention.

    Layers of each rule are cut into bins of at most the size of the smallest rule's layers, or
    smaller where padding would waste more than _MAX_IDLE_SHARE.
    """
    rules: dict[int | None, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        rules.setdefault(layer.sliding_window, []).append(number)
    if not rules:
        return ()
    sizes = [layer.bytes_per_token for layer in spec.layers]
    smallest = min(rules.values(), key=lambda layers: sum(sizes[i] for i in layers))
    best: list[tuple[int | None, list[int]]] = []
    least_idle = 1.0
    for count in range(len(smallest), 0, -1):
        capacity = max(sum(sizes[i] for i in smallest[:count]), *sizes)
        bins = [(w, bin_) for w, layers in rules.items() for bin_ in _bins(layers, sizes, capacity)]
        largest = max(sum(sizes[i] for i in bin_) for _, bin_ in bins)
        idle = 1 - sum(sizes) / (largest * len(bins))
        if idle < least_idle:
            best, least_idle = bins, idle
        if idle <= _MAX_IDLE_SHARE:
            break
    # Full attention first: it bounds what the others can hit.
    best.sort(key=lambda found: found[0] is not None)
    return tuple(
        CacheGroup(tuple(layers), window, sum(sizes[i] for i in layers)) for window, layers in best
    )


def _bins(layers: Sequence[int], sizes: Sequence[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = [[]]
    for number in layers:
        if bins[-1] and sum(sizes[i] for i in bins[-1]) + sizes[number] > capacity:
            bins.append([])
        bins[-1].append(number)
    return bins


class FullAttention:
    """Every token sees all before it: blocks are kept to the end."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def max_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` holds at a time: all of its own.

        A step computes at most `max_step_tokens` of its tokens.
        """
        return -(-num_tokens // self._block_size)

    def find_hits(self, find: Find, null_block: Block, hashes: Sequence[bytes]) -> list[Block]:
        """The table entries of the longest cached prefix of `hashes`."""
        hits = []
        for content_hash in hashes:
            block = find(content_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Index of the first block that a later token can still see."""
        return 0


class SlidingWindow:
    """A token sees the last `window` tokens, itself included: older blocks are released."""

    def __init__(self, block_size: int, window: int) -> None:
        self._block_size = block_size
        self._window = window

    def max_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """The window and one step's tokens, plus a block since neither is aligned."""
        live = self._window - 1 + min(num_tokens, max_step_tokens)
        return min(-(-num_tokens // self._block_size), -(-live // self._block_size) + 1)

    def find_hits(self, find: Find, null_block: Block, hashes: Sequence[bytes]) -> list[Block]:
        """The longest prefix whose last window is cached, with null blocks before it.

        Searched from the back: only a prefix's last blocks must still be cached.
        """
        needed = -(-(self._window - 1) // self._block_size)
        run: list[Block] = []
        for index in range(len(hashes) - 1, -1, -1):
            if len(run) == needed:
                break
            block = find(hashes[index])
            if block is None:
                run.clear()
            else:
                run.append(block)
        else:
            return run[::-1]  # a prefix within one window: all of its blocks are cached
        end = index + 1 + needed
        return [null_block] * (end - needed) + run[::-1]

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """The block of the oldest token in the next token's window."""
        return max(0, num_computed_tokens - self._window + 1) // self._block_size


AttentionRule = FullAttention | SlidingWindow


def attention_rule(sliding_window: int | None, block_size: int) -> AttentionRule:
    """The rule of layers with this window, None for full attention."""
    if sliding_window is None:
        return FullAttention(block_size)
    return SlidingWindow(block_size, sliding_window)
