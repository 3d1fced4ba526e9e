"""A group keeps what a later token can see, and hits what it can continue from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.core.block_pool import BlockPool
from vllm_lite.core.kv_group import FullAttention, SlidingWindow

SIZE = 4


def pool_with(present: list[bool]) -> tuple[BlockPool, list[bytes]]:
    """A pool that has cached exactly the marked blocks of a chain."""
    pool = BlockPool(len(present) + 1)
    hashes = [b"%d" % i for i in range(len(present))]
    for block, content, is_there in zip(
        pool.try_take(len(present)) or [], hashes, present, strict=True
    ):
        if is_there:
            pool.publish(block, content)
    return pool, hashes


@given(st.lists(st.booleans(), max_size=8))
def test_full_attention_hits_up_to_the_first_gap(present: list[bool]) -> None:
    pool, hashes = pool_with(present)
    hits = FullAttention(SIZE).find_hits(pool.find, pool.null_block, hashes)
    assert len(hits) == [*present, False].index(False)
    assert [block.content_hash for block in hits] == hashes[: len(hits)]


@given(st.lists(st.booleans(), max_size=8), st.integers(1, 20))
def test_a_window_hits_the_longest_prefix_that_it_can_continue(
    present: list[bool], window: int
) -> None:
    pool, hashes = pool_with(present)

    def can_continue(count: int) -> bool:
        first = max(0, count * SIZE - window + 1) // SIZE
        return all(present[first:count])

    hits = SlidingWindow(SIZE, window).find_hits(pool.find, pool.null_block, hashes)
    assert len(hits) == max(n for n in range(len(present) + 1) if can_continue(n))
    first = max(0, len(hits) * SIZE - window + 1) // SIZE
    for index, block in enumerate(hits):
        assert block.content_hash == hashes[index] if index >= first else block is not None


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 20))
def test_window_keeps_blocks_that_later_tokens_see(computed: int, window: int, step: int) -> None:
    rule = SlidingWindow(SIZE, window)
    first = rule.first_needed_block(computed)
    assert first * SIZE <= max(0, computed - window + 1) < (first + 1) * SIZE
    held = -(-(computed + step) // SIZE) - first
    assert held <= rule.max_blocks(computed + step, step)
    assert held <= rule.max_blocks(computed + step + 7, step)
