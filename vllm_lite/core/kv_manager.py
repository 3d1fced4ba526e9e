"""The block tables of each request: prefix hits, allocation and release.

Invariants: only full blocks whose tokens are computed are published for others; a request writes
only to blocks that it alone holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vllm_lite.core.block import Block, BlockHasher
from vllm_lite.core.block_events import BlockEvents
from vllm_lite.core.block_pool import BlockPool
from vllm_lite.core.kv_group import AttentionRule, attention_rule
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.request import Request
from vllm_lite.core.state_pool import NoStates, StatePool
from vllm_lite.core.step import StateSlots


class _Table:
    """One request's blocks in one group, in order of position."""

    __slots__ = ("blocks", "num_released")

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        # Ahead of the window, entries of hits are null blocks already.
        self.num_released = 0


class _Tables:
    """One request's tables, one for each group, all of one length."""

    __slots__ = ("length", "num_published", "of_group")

    def __init__(self, of_group: list[_Table], length: int, num_hit: int) -> None:
        self.of_group = of_group
        self.length = length
        # Hits are published already.
        self.num_published = num_hit


class Hits(NamedTuple):
    """The longest prefix of a request that is in the cache."""

    num_tokens: int
    # A list of blocks for each group.
    tables: list[list[Block]]
    # Of models with state-space layers: the snapshot behind it.
    state: Block | None = None


class Reserve(NamedTuple):
    """Blocks that must stay unused when a request is admitted."""

    # Share of all blocks; a request that would be alone needs none of it.
    watermark: float = 0.0
    # Room for the whole prompt, so that a long one is not begun only to be preempted halfway.
    whole_prompts: bool = True


_WHOLE_PROMPTS = Reserve()


class KVCacheManager:
    """Allocates blocks of the planned cache to requests."""

    def __init__(
        self,
        plan: KVCachePlan,
        *,
        enable_caching: bool = True,
        max_step_tokens: int = 1 << 62,
        reserve: Reserve = _WHOLE_PROMPTS,
        events: BlockEvents | None = None,
    ) -> None:
        self.block_size = plan.block_size
        self.enable_caching = enable_caching
        self.pool = BlockPool(plan.num_blocks, events)
        self._events = events
        self._max_step_tokens = max_step_tokens
        self._spare_blocks = int(reserve.watermark * plan.num_blocks)
        self._reserves_whole_prompts = reserve.whole_prompts
        self._groups = [
            _Group(index, attention_rule(group.sliding_window, plan.block_size), self.pool)
            for index, group in enumerate(plan.groups)
        ]
        self._hasher = BlockHasher(plan.block_size)
        self.states = NoStates()
        if plan.num_states:
            self.states = StatePool(
                plan.num_states,
                plan.block_size,
                keeps=enable_caching,
                interval=plan.state_interval,
            )
        self._tables: dict[str, _Tables] = {}
        self._nothing: list[list[int]] = []

    def get_computed_blocks(self, request: Request) -> Hits:
        """The longest cached prefix that leaves a token to compute.

        Takes no reference: pass the result to try_admit before any other call. Each group bounds
        the others' hits until all agree.
        """
        if not (self.enable_caching and request.can_read_prefix_cache):
            return Hits(0, [[] for _ in self._groups])
        hashes = request.block_hashes
        self._hasher.extend(request)
        # The last token is always computed, for its logits.
        length = (request.num_tokens - 1) // self.block_size
        while True:
            usable = hashes[:length]
            tables = [group.find_hits(usable) for group in self._groups]
            reached, state = self.states.find_hit(usable)
            shortest = min(reached, *map(len, tables), length)
            if all(len(table) == shortest for table in tables) and reached == shortest:
                return Hits(shortest * self.block_size, tables, state)
            length = shortest

    def try_admit(self, request: Request, hits: Hits, num_new_tokens: int) -> bool:
        """Allocate a new request's hits and blocks for its first tokens.

        False where that would leave less than the reserve.
        """
        num_hit = hits.num_tokens // self.block_size
        count = -(-(hits.num_tokens + num_new_tokens) // self.block_size) - num_hit
        needed = self._spare_blocks if self._tables else 0
        null_block = self.pool.null_block
        for group, table in zip(self._groups, hits.tables, strict=True):
            whole = 0
            if self._reserves_whole_prompts:
                held = sum(1 for block in table if block is not null_block)
                whole = group.rule.max_blocks(request.num_tokens, self._max_step_tokens) - held
            needed += max(count, whole)
        unused_hits = sum(1 for table in hits.tables for block in table if block.ref_count == 0)
        if needed > self.pool.num_unused - unused_hits:
            return False
        if not self.states.try_admit(request, hits.state):
            return False
        for table in hits.tables:
            self.pool.hold(table)
        blocks = self.pool.try_take(count * len(self._groups))
        assert blocks is not None
        of_group = [
            _Table(table + blocks[i * count : (i + 1) * count])
            for i, table in enumerate(hits.tables)
        ]
        self._tables[request.request_id] = _Tables(of_group, num_hit + count, num_hit)
        return True

    def try_allocate_slots(self, request: Request, num_new_tokens: int) -> list[list[int]] | None:
        """Allocate blocks for the request's next tokens.

        Blocks that its windows have left are released first, if any are needed.

        Returns the ids of the appended blocks, a list for each group, or an empty list where none
        was needed; None, with none taken, where there are not enough.
        """
        tables = self._tables[request.request_id]
        size = self.block_size
        end = request.num_planned_tokens + num_new_tokens
        missing = (end + size - 1) // size - tables.length
        if missing <= 0:
            return self._nothing
        self._release_out_of_window(tables, request)
        blocks = self.pool.try_take(missing * len(tables.of_group))
        if blocks is None:
            return None
        tables.length += missing
        for i, table in enumerate(tables.of_group):
            table.blocks += blocks[i * missing : (i + 1) * missing]
        ids = [block.block_id for block in blocks]
        return [ids[i : i + missing] for i in range(0, len(ids), missing)]

    def publish_computed(self, request: Request) -> None:
        """Publish the blocks that this request's computed tokens have filled."""
        tables = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= tables.num_published or not self.enable_caching:
            return
        hashes = request.block_hashes
        self._hasher.extend(request)
        for group, table in zip(self._groups, tables.of_group, strict=True):
            for index in range(tables.num_published, num_full):
                self.pool.publish(table.blocks[index], group.key(hashes[index]))
        if self._events is not None and self._groups:
            start, tokens = tables.num_published, request.token_ids
            self._events.stored(hashes, start, num_full, tokens, self.block_size)
        tables.num_published = num_full
        self.states.publish_computed(request)

    def withdraw(self, request: Request) -> None:
        """Remove a request's blocks from the prefix map: their content is in doubt."""
        for table in self._tables[request.request_id].of_group:
            self.pool.withdraw(table.blocks)
        self.states.withdraw(request)

    def free(self, request: Request) -> None:
        tables = self._tables.pop(request.request_id, None)
        if tables is not None:
            self._release_out_of_window(tables, request)
            for table in tables.of_group:
                # Tail first: a prefix outlives its continuation, so it can still be hit.
                self.pool.release(table.blocks[::-1])
        self.states.free(request)

    def _release_out_of_window(self, tables: _Tables, request: Request) -> None:
        """Release what no later token sees; it is reused before blocks that prefixes need."""
        for group, table in zip(self._groups, tables.of_group, strict=True):
            # Planned tokens do not count: their blocks are still to be published.
            group.release_out_of_window(table, request.num_computed_tokens)

    def block_ids(self, request: Request) -> list[list[int]]:
        tables = self._tables[request.request_id].of_group
        return [[block.block_id for block in table.blocks] for table in tables]

    def plan_states(
        self, requests: Sequence[Request], counts: Mapping[str, int]
    ) -> dict[str, StateSlots]:
        """The state slots of a step's requests; empty where a model has none.

        `counts`: tokens of each in this step, which are not counted as planned yet.
        """
        return self.states.plan_step(requests, counts)

    @property
    def usage(self) -> float:
        """Share of the cache in use, 0 to 1: of its blocks or its states, whichever is more."""
        return max(self.pool.usage, self.states.usage)

    def try_reset_prefix_cache(self) -> bool:
        """Forget all cached content; refused while any request holds blocks."""
        return not self._tables and self.pool.try_reset() and self.states.try_reset()


class _Group:
    """One group's prefix hits, publishing and release of blocks."""

    def __init__(self, index: int, rule: AttentionRule, pool: BlockPool) -> None:
        self.rule = rule
        self._pool = pool
        # One content lies in a block of each group.
        self._suffix = index.to_bytes(2, "little") if index else b""

    def key(self, content_hash: bytes) -> bytes:
        return content_hash + self._suffix if self._suffix else content_hash

    def find_hits(self, hashes: list[bytes]) -> list[Block]:
        keys = [content_hash + self._suffix for content_hash in hashes] if self._suffix else hashes
        return self.rule.find_hits(self._pool.find, self._pool.null_block, keys)

    def release_out_of_window(self, table: _Table, num_computed_tokens: int) -> None:
        first = self.rule.first_needed_block(num_computed_tokens)
        if first <= table.num_released:
            return
        old = table.blocks[table.num_released : first]
        table.blocks[table.num_released : first] = [self._pool.null_block] * len(old)
        table.num_released = first
        self._pool.release(old, is_of_use=False)
