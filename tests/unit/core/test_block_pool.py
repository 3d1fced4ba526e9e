"""The pool's books balance whatever its users do, and eviction takes the oldest first."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_lite.core.block_pool import BlockPool

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    """Take, publish, hold again and release in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held: list[int] = []  # one entry for each reference
        self.count = 0

    @rule(count=st.integers(0, NUM_BLOCKS))
    def take(self, count: int) -> None:
        free = NUM_BLOCKS - 1 - len(set(self.held))
        taken = self.pool.try_take(count)
        assert (taken is None) == (count > free)
        ids = [block.block_id for block in taken or []]
        assert not set(ids) & {0, *self.held}
        assert len(set(ids)) == len(ids)
        self.held += ids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = self.pool.blocks[data.draw(st.sampled_from(self.held))]
        if block.content_hash is None:
            self.count += 1
            content = b"%d" % data.draw(st.integers(0, self.count))
            self.pool.publish(block, content)
            found = self.pool.find(content)
            assert found is not None and found.content_hash == content

    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = self.pool.find(b"%d" % data.draw(st.integers(0, self.count)))
        if block is not None:
            self.pool.hold([self.pool.null_block, block])
            self.held.append(block.block_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.release([self.pool.null_block, self.pool.blocks[self.held.pop(place)]])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        block = self.pool.blocks[data.draw(st.sampled_from(self.held))]
        content = block.content_hash
        self.pool.withdraw([self.pool.null_block, block])
        assert block.content_hash is None
        assert content is None or self.pool.find(content) is None

    @rule()
    def reset(self) -> None:
        assert self.pool.try_reset() == (not self.held)
        if not self.held:
            assert self.pool.num_free == self.pool.num_total

    @invariant()
    def books_balance(self) -> None:
        pool = self.pool
        assert pool.num_used == len(set(self.held))
        assert pool.num_free + pool.num_cached + pool.num_used == NUM_BLOCKS - 1
        for block in pool.blocks[1:]:
            assert block.ref_count == self.held.count(block.block_id)
        unused = [b for b in pool.blocks[1:] if not b.ref_count]
        assert pool.num_cached == sum(b.content_hash is not None for b in unused)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def cached(pool: BlockPool, names: str) -> list[str]:
    return [name for name in names if pool.find(name.encode()) is not None]


def test_the_least_recently_used_content_is_evicted_first() -> None:
    pool = BlockPool(5)
    blocks = pool.try_take(4) or []
    for block, name in zip(blocks, "abcd", strict=True):
        pool.publish(block, name.encode())
    for block in blocks:
        pool.release([block])
    pool.hold([blocks[0]])  # a is used again
    pool.release([blocks[0]])
    pool.try_take(2)
    assert cached(pool, "abcd") == ["a", "d"]


def test_a_block_without_content_is_reused_before_any_with() -> None:
    pool = BlockPool(4)
    first, second, third = pool.try_take(3) or []
    pool.publish(first, b"a")
    pool.publish(second, b"b")
    pool.release([first, second, third])
    assert pool.try_take(1) == [third]
    assert cached(pool, "ab") == ["a", "b"]


def test_the_first_of_two_equal_blocks_is_the_one_that_is_hit() -> None:
    pool = BlockPool(3)
    first, second = pool.try_take(2) or []
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    assert pool.find(b"a") is first and second.content_hash is None
    pool.release([second])
    assert pool.find(b"a") is first
