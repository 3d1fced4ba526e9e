"""The blocks: reference counts, the free list, eviction and the prefix map.

Unused blocks form a linked list in eviction order, so that taking a cached block out of its middle
is O(1). Invariant: free + cached + used = total, where a cached block is unused but its content
can still be hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm_lite.core.block import NULL_BLOCK_ID, Block
from vllm_lite.core.block_events import BlockEvents


class BlockPool:
    """All blocks of one KV cache; block 0 is the null block and never allocated."""

    def __init__(self, num_blocks: int, events: BlockEvents | None = None) -> None:
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.ref_count = 1
        self.num_total = num_blocks - 1
        # Unused blocks, and those among them that can be hit.
        self.num_unused = 0
        self.num_cached = 0
        self._by_hash: dict[bytes, Block] = {}
        self._events = events
        # Two sentinels in one ring, in order of eviction: after `_ring` the blocks without content
        # or hardly of use, after `_of_use` the others, least recently used first.
        self._ring, self._of_use = Block(-1), Block(-1)
        self._ring.previous = self._ring.next = self._of_use
        self._of_use.previous = self._of_use.next = self._ring
        for block in self.blocks[1:]:
            self._insert_before(self._of_use, block)

    @property
    def num_free(self) -> int:
        """Unused blocks without cached content."""
        return self.num_unused - self.num_cached

    @property
    def num_used(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_total - self.num_unused

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.num_used / self.num_total if self.num_total else 0.0

    def find(self, content_hash: bytes) -> Block | None:
        """The block that holds this content, in use or not."""
        return self._by_hash.get(content_hash)

    def try_take(self, count: int) -> list[Block] | None:
        """Take `count` blocks of undefined content; None where there are fewer."""
        if count > self.num_unused:
            return None
        taken = []
        for _ in range(count):
            block = self._ring.next
            if block is self._of_use:
                block = block.next
            assert block is not None
            self._unlink(block)
            if block.content_hash is not None:
                self._forget(block)
                self.num_cached -= 1
            block.ref_count = 1
            taken.append(block)
        return taken

    def hold(self, blocks: Iterable[Block]) -> None:
        """Add one reference to each block; an unused one leaves the free list."""
        for block in blocks:
            if block.ref_count == 0:
                self._unlink(block)
                self.num_cached -= 1
            if block is not self.null_block:
                block.ref_count += 1

    def release(self, blocks: Sequence[Block], is_of_use: bool = True) -> None:
        """Drop one reference from each block.

        The first of `blocks` is reused first. A block without cached content goes to the front, so
        that cached ones live longer; with `is_of_use` false a cached one goes before those in use
        recently.
        """
        place = self._ring if is_of_use else self._of_use
        for block in blocks:
            if block is self.null_block:
                continue
            block.ref_count -= 1
            if block.ref_count:
                continue
            if block.content_hash is None:
                assert self._ring.next is not None
                self._insert_before(self._ring.next, block)
            else:
                self._insert_before(place, block)
                self.num_cached += 1

    def publish(self, block: Block, content_hash: bytes) -> None:
        """Publish a held block under its content, unless another has the same."""
        if self._by_hash.setdefault(content_hash, block) is block:
            block.content_hash = content_hash

    def withdraw(self, blocks: Iterable[Block]) -> None:
        """Remove blocks from the prefix map; their holders keep them."""
        for block in blocks:
            if block.content_hash is not None:
                self._forget(block)
                self.num_cached -= block.ref_count == 0

    def put_first(self, block: Block) -> None:
        """Let an unused block be evicted before those of use."""
        if block.ref_count == 0:
            self._unlink(block)
            self._insert_before(self._of_use, block)

    def try_reset(self) -> bool:
        """Forget all cached content; refused while any block is held."""
        if self.num_used:
            return False
        for block in self._by_hash.values():
            block.content_hash = None
        self._by_hash.clear()
        self.num_cached = 0
        if self._events is not None:
            self._events.cleared()
        return True

    def _forget(self, block: Block) -> None:
        assert block.content_hash is not None
        del self._by_hash[block.content_hash]
        if self._events is not None:
            self._events.removed(block.content_hash)
        block.content_hash = None

    def _insert_before(self, where: Block, block: Block) -> None:
        previous = where.previous
        assert previous is not None
        block.previous, block.next = previous, where
        previous.next = where.previous = block
        self.num_unused += 1

    def _unlink(self, block: Block) -> None:
        previous, following = block.previous, block.next
        assert previous is not None and following is not None
        previous.next, following.previous = following, previous
        block.previous = block.next = None
        self.num_unused -= 1
