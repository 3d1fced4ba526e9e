"""The block table of each request: prefix hits, growth, and giving back.

Knows no batch and no policy. Invariants: a block is published for others only after its
tokens are computed, and only blocks that are full are; a request writes only to blocks that
it alone holds.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_lite.core.block import Block, BlockHasher
from vllm_lite.core.block_pool import BlockPool
from vllm_lite.core.kv_group import attention_rule
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.request import Request

_NOTHING: list[int] = []


class _Table:
    """One request's blocks, in order of position."""

    __slots__ = ("blocks", "num_published", "num_released")

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        # Hits are published already; ahead of the window, entries are null blocks already.
        self.num_published = len(blocks)
        self.num_released = 0


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
        self._rule = attention_rule(plan.spec, plan.block_size)
        self._slides = plan.spec.sliding_window is not None
        self._hasher = BlockHasher(plan.block_size)
        self._tables: dict[str, _Table] = {}

    def get_computed_blocks(self, request: Request) -> list[Block]:
        """The blocks of the longest cached prefix that leaves a token to compute.

        Holds nothing: pass the result to try_allocate_slots before anything else moves.
        """
        if not (self.enable_caching and request.can_read_prefix_cache):
            return []
        hashes = request.block_hashes
        self._hasher.extend(hashes, request.token_ids, request.cache_salt)
        # The last token's logits are wanted, so that it is computed in any case.
        usable = (request.num_tokens - 1) // self.block_size
        return self._rule.find_hits(self.pool, hashes[:usable])

    def try_admit(self, request: Request, hits: list[Block], num_new_tokens: int) -> bool:
        """Give a request that has no blocks its hits and room for its first tokens.

        Refused where that would leave less than the reserve.
        """
        num_hit = len(hits)
        num_tokens = num_hit * self.block_size + num_new_tokens
        count = -(-num_tokens // self.block_size) - num_hit
        needed = count
        if self._reserves_whole_prompts:
            held = sum(1 for block in hits if block is not self.pool.null_block)
            whole = self._rule.max_blocks(request.num_tokens, self._max_step_tokens)
            needed = max(needed, whole - held)
        if self._tables:
            needed += self._spare_blocks
        unused_hits = sum(1 for block in hits if block.ref_count == 0)
        if needed > self.pool.num_unused - unused_hits:
            return False
        self.pool.hold(hits)
        blocks = self.pool.try_take(count)
        assert blocks is not None
        table = _Table(hits)
        table.blocks = hits + blocks
        self._tables[request.request_id] = table
        return True

    def try_allocate_slots(self, request: Request, num_new_tokens: int) -> list[int] | None:
        """Make room for the request's next tokens.

        Returns the ids of the blocks that were appended to its table, or None, with none
        taken, where there are not enough.
        """
        table = self._tables[request.request_id]
        if self._slides:
            # Not what is only planned: its blocks are still to be published.
            self._release_out_of_window(table, request.num_computed_tokens)
        size = self.block_size
        end = request.num_planned_tokens + num_new_tokens
        missing = (end + size - 1) // size - len(table.blocks)
        if missing <= 0:
            return _NOTHING
        blocks = self.pool.try_take(missing)
        if blocks is None:
            return None
        table.blocks += blocks
        return [block.block_id for block in blocks]

    def publish_computed(self, request: Request) -> None:
        """Let others hit the blocks that this request's computed tokens have filled."""
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= table.num_published or not self.enable_caching:
            return
        hashes = request.block_hashes
        self._hasher.extend(hashes, request.token_ids, request.cache_salt)
        for index in range(table.num_published, num_full):
            self.pool.publish(table.blocks[index], hashes[index])
        table.num_published = num_full

    def withdraw(self, request: Request) -> None:
        """Let nobody hit a request's blocks any more: what they hold is in doubt."""
        self.pool.withdraw(self._tables[request.request_id].blocks)

    def free(self, request: Request) -> None:
        """Take back all blocks of a request; one without blocks is fine."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            # Tail first: a prefix outlives its continuation, so it can still be hit.
            self.pool.release(table.blocks[::-1])

    def block_ids(self, request: Request) -> list[int]:
        """The request's block table."""
        return [block.block_id for block in self._tables[request.request_id].blocks]

    def try_reset_prefix_cache(self) -> bool:
        """Forget all cached content; refused while any request holds blocks."""
        return self.pool.try_reset()

    def _release_out_of_window(self, table: _Table, num_computed_tokens: int) -> None:
        first = self._rule.first_needed_block(num_computed_tokens)
        if first <= table.num_released:
            return
        old = table.blocks[table.num_released : first]
        table.blocks[table.num_released : first] = [self.pool.null_block] * len(old)
        table.num_released = first
        self.pool.release(old)
