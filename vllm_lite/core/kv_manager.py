"""The block tables of each request: prefix hits, growth, and giving back.

Knows no batch and no policy. Invariants: a block is published for others only after its
tokens are computed, and only blocks that are full are; a request writes only to blocks that
it alone holds.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_lite.core.block import Block, BlockHasher
from vllm_lite.core.block_pool import BlockPool
from vllm_lite.core.kv_group import AttentionRule, attention_rule
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.request import Request


class _Table:
    """One request's blocks in one group, in order of position."""

    __slots__ = ("blocks", "num_published", "num_released")

    def __init__(self, hits: list[Block], new: list[Block]) -> None:
        self.blocks = hits + new
        # Hits are published already; ahead of the window, entries are null blocks already.
        self.num_published = len(hits)
        self.num_released = 0


class Hits(NamedTuple):
    """The longest prefix of a request that is in the cache."""

    num_tokens: int
    # A list of blocks for each group.
    tables: list[list[Block]]


class Reserve(NamedTuple):
    """What has to be unused before a request begins, beside its first blocks."""

    # Share of all blocks; a request that would be alone needs none of it.
    watermark: float = 0.0
    # Room for the whole prompt, so that a long one is not begun only to be preempted halfway.
    whole_prompts: bool = True


_WHOLE_PROMPTS = Reserve()


class KVCacheManager:
    """Hands blocks of the planned cache to requests and takes them back."""

    def __init__(
        self,
        plan: KVCachePlan,
        *,
        enable_caching: bool = True,
        max_step_tokens: int = 1 << 62,
        reserve: Reserve = _WHOLE_PROMPTS,
    ) -> None:
        self.block_size = plan.block_size
        self.enable_caching = enable_caching
        self.pool = BlockPool(plan.num_blocks)
        self._max_step_tokens = max_step_tokens
        self._spare_blocks = int(reserve.watermark * plan.num_blocks)
        self._reserves_whole_prompts = reserve.whole_prompts
        self._groups = [
            _Group(index, attention_rule(group.sliding_window, plan.block_size), self.pool)
            for index, group in enumerate(plan.groups)
        ]
        self._slides = any(group.sliding_window is not None for group in plan.groups)
        self._hasher = BlockHasher(plan.block_size)
        self._tables: dict[str, list[_Table]] = {}
        self._nothing: list[list[int]] = []

    def get_computed_blocks(self, request: Request) -> Hits:
        """The longest cached prefix that leaves a token to compute.

        Holds nothing: pass the result to try_admit before anything else moves. Each group bounds
        what the others may hit, until all agree.
        """
        if not (self.enable_caching and request.can_read_prefix_cache):
            return Hits(0, [[] for _ in self._groups])
        hashes = request.block_hashes
        self._hasher.extend(hashes, request.token_ids, request.cache_salt)
        # The last token's logits are wanted, so that it is computed in any case.
        length = (request.num_tokens - 1) // self.block_size
        while True:
            usable = hashes[:length]
            tables = [group.find_hits(usable) for group in self._groups]
            shortest = min(map(len, tables))
            if all(len(table) == shortest for table in tables):
                return Hits(shortest * self.block_size, tables)
            length = shortest

    def try_admit(self, request: Request, hits: Hits, num_new_tokens: int) -> bool:
        """Give a request that has no blocks its hits and room for its first tokens.

        Refused where that would leave less than the reserve.
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
        for table in hits.tables:
            self.pool.hold(table)
        blocks = self.pool.try_take(count * len(self._groups))
        assert blocks is not None
        self._tables[request.request_id] = [
            _Table(table, blocks[i * count : (i + 1) * count])
            for i, table in enumerate(hits.tables)
        ]
        return True

    def try_allocate_slots(self, request: Request, num_new_tokens: int) -> list[list[int]] | None:
        """Make room for the request's next tokens.

        Returns the ids of the blocks that were appended to its tables, a list for each group and
        none at all where nothing was; or None, with none taken, where there are not enough.
        """
        tables = self._tables[request.request_id]
        if self._slides:
            # Not what is only planned: its blocks are still to be published.
            for group, table in zip(self._groups, tables, strict=True):
                group.release_out_of_window(table, request.num_computed_tokens)
        size = self.block_size
        end = request.num_planned_tokens + num_new_tokens
        missing = (end + size - 1) // size - len(tables[0].blocks)
        if missing <= 0:
            return self._nothing
        blocks = self.pool.try_take(missing * len(tables))
        if blocks is None:
            return None
        for i, table in enumerate(tables):
            table.blocks += blocks[i * missing : (i + 1) * missing]
        ids = [block.block_id for block in blocks]
        return [ids[i : i + missing] for i in range(0, len(ids), missing)]

    def publish_computed(self, request: Request) -> None:
        """Let others hit the blocks that this request's computed tokens have filled."""
        tables = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= tables[0].num_published or not self.enable_caching:
            return
        hashes = request.block_hashes
        self._hasher.extend(hashes, request.token_ids, request.cache_salt)
        for group, table in zip(self._groups, tables, strict=True):
            for index in range(table.num_published, num_full):
                self.pool.publish(table.blocks[index], group.key(hashes[index]))
            table.num_published = num_full

    def withdraw(self, request: Request) -> None:
        """Let nobody hit a request's blocks any more: what they hold is in doubt."""
        for table in self._tables[request.request_id]:
            self.pool.withdraw(table.blocks)

    def free(self, request: Request) -> None:
        """Take back all blocks of a request; one without blocks is fine."""
        for table in self._tables.pop(request.request_id, ()):
            # Tail first: a prefix outlives its continuation, so it can still be hit.
            self.pool.release(table.blocks[::-1])

    def block_ids(self, request: Request) -> list[list[int]]:
        """The request's block tables, one for each group."""
        tables = self._tables[request.request_id]
        return [[block.block_id for block in table.blocks] for table in tables]

    def try_reset_prefix_cache(self) -> bool:
        """Forget all cached content; refused while any request holds blocks."""
        return self.pool.try_reset()


class _Group:
    """One group's way to find, name and give back blocks."""

    def __init__(self, index: int, rule: AttentionRule, pool: BlockPool) -> None:
        self.rule = rule
        self._pool = pool
        # One content lies in a block of each group.
        self._suffix = index.to_bytes(2, "little") if index else b""

    def key(self, content_hash: bytes) -> bytes:
        """Under which the block of a content is found."""
        return content_hash + self._suffix if self._suffix else content_hash

    def find_hits(self, hashes: list[bytes]) -> list[Block]:
        """The table entries of the longest prefix of `hashes` that is computed already."""
        keys = [content_hash + self._suffix for content_hash in hashes] if self._suffix else hashes
        return self.rule.find_hits(self._pool.find, self._pool.null_block, keys)

    def release_out_of_window(self, table: _Table, num_computed_tokens: int) -> None:
        """Give back what no later token sees."""
        first = self.rule.first_needed_block(num_computed_tokens)
        if first <= table.num_released:
            return
        old = table.blocks[table.num_released : first]
        table.blocks[table.num_released : first] = [self._pool.null_block] * len(old)
        table.num_released = first
        self._pool.release(old)
