"""State slots: a working one for each running request, and snapshots for prefix hits.

A prefix can be hit where a snapshot was kept: behind the last full block of a prompt, behind the
last of a request, and at intervals. No state is copied: a step reads one slot and writes another.
Invariants: a snapshot is published only when its tokens are computed; no request writes to a slot
that another one holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vllm_lite.core.block import Block
from vllm_lite.core.block_pool import BlockPool
from vllm_lite.core.request import Request
from vllm_lite.core.step import StateSlots


class NoStates:
    """The states of a model that has none."""

    usage = 0.0
    # Slots that no request holds.
    num_unused = 1 << 62

    def find_hit(self, hashes: Sequence[bytes]) -> tuple[int, Block | None]:
        """The longest prefix of `hashes` that has a snapshot behind it: its length and the slot."""
        return len(hashes), None

    def try_admit(self, request: Request, hit: Block | None) -> bool:
        """Give a request a working slot, to begin with the state `hit`; False if none is free."""
        return True

    def plan_step(
        self, requests: Sequence[Request], counts: Mapping[str, int]
    ) -> dict[str, StateSlots]:
        """The slots that each request's next `counts` tokens read and write."""
        return {}

    def publish_computed(self, request: Request) -> None:
        """Publish the snapshots of computed tokens."""

    def withdraw(self, request: Request) -> None:
        """Remove the snapshots of the request's tokens from the prefix map."""

    def free(self, request: Request) -> None:
        """Free the slots of a request, if it has any."""

    def try_reset(self) -> bool:
        """Forget all snapshots; refused while a request holds slots."""
        return True


class _Slots:
    """The slots of one request, each held once for each use."""

    __slots__ = ("latest", "reading", "rolling", "unpublished", "working")

    def __init__(self, working: Block, hit: Block | None) -> None:
        self.working = working
        # The slot that the next step reads; None: zeros.
        self.latest = hit
        # The slot that the planned step reads, unless it is the working one.
        self.reading: Block | None = None
        # Numbers of tokens, and the state behind them.
        self.unpublished: list[tuple[int, Block]] = []
        # The last snapshot behind the prompt, and its content.
        self.rolling: tuple[Block, bytes] | None = None


class StatePool(NoStates):
    """Allocates slots, and finds snapshots by the hash of the last block before them."""

    def __init__(
        self, num_states: int, block_size: int, *, keeps: bool = True, interval: int | None = None
    ) -> None:
        """`keeps`: whether there are snapshots; `interval`: tokens between those in a prompt."""
        # A slot is a block's id less 1: the null block is no state.
        self.pool = BlockPool(num_states + 1)
        self._block_size = block_size
        self._keeps = keeps
        self._interval = interval
        self._slots: dict[str, _Slots] = {}

    @property
    def usage(self) -> float:  # type: ignore[override]
        """Share of the slots that requests hold, 0 to 1."""
        return self.pool.usage

    @property
    def num_unused(self) -> int:  # type: ignore[override]
        """Slots that no request holds."""
        return self.pool.num_unused

    def find_hit(self, hashes: Sequence[bytes]) -> tuple[int, Block | None]:
        for length in range(len(hashes), 0, -1):
            block = self.pool.find(hashes[length - 1])
            if block is not None:
                return length, block
        return 0, None

    def try_admit(self, request: Request, hit: Block | None) -> bool:
        hits = [] if hit is None else [hit]
        if self.pool.num_unused - sum(block.ref_count == 0 for block in hits) < 1:
            return False
        self.pool.hold(hits)
        taken = self.pool.try_take(1)
        assert taken is not None
        self._slots[request.request_id] = _Slots(taken[0], hit)
        return True

    def plan_step(
        self, requests: Sequence[Request], counts: Mapping[str, int]
    ) -> dict[str, StateSlots]:
        return {
            request.request_id: self._plan(request, counts[request.request_id])
            for request in requests
        }

    def _plan(self, request: Request, num_new_tokens: int) -> StateSlots:
        """The slots that a request's next tokens read and write.

        A slot that a step reads is held until the next step is planned, so that no other request
        writes to it in the same step.
        """
        slots, pool = self._slots[request.request_id], self.pool
        self._stop_reading(slots)
        read = slots.latest
        slots.reading = None if read is slots.working else read
        start = request.num_planned_tokens
        end = start + num_new_tokens
        slots.latest = slots.working
        writes = []
        for position in self._snapshots(request, start, end):
            taken = pool.try_take(1)
            if taken is None:
                break
            slots.unpublished.append((position, taken[0]))
            writes.append((position - start - 1, taken[0].block_id - 1))
            if position == end:
                slots.latest = taken[0]
                pool.hold(taken)
        if slots.latest is slots.working:
            writes.append((num_new_tokens - 1, slots.working.block_id - 1))
        return StateSlots(-1 if read is None else read.block_id - 1, writes)

    def publish_computed(self, request: Request) -> None:
        slots = self._slots[request.request_id]
        while slots.unpublished and slots.unpublished[0][0] <= request.num_computed_tokens:
            position, block = slots.unpublished.pop(0)
            content = request.block_hashes[position // self._block_size - 1]
            self.pool.publish(block, content)
            self.pool.release([block])
            if position > self._prompt_end(request):
                # Only the last snapshot behind the prompt is likely to be hit.
                if slots.rolling is not None and slots.rolling[0].content_hash == slots.rolling[1]:
                    self.pool.put_first(slots.rolling[0])
                slots.rolling = block, content

    def withdraw(self, request: Request) -> None:
        found = (self.pool.find(content) for content in request.block_hashes)
        self.pool.withdraw([block for block in found if block is not None])

    def free(self, request: Request) -> None:
        slots = self._slots.pop(request.request_id, None)
        if slots is None:
            return
        self._stop_reading(slots)
        if slots.latest is not None and slots.latest is not slots.working:
            self.pool.release([slots.latest])
        self.pool.release([block for _, block in slots.unpublished])
        self.pool.release([slots.working])

    def try_reset(self) -> bool:
        return self.pool.try_reset()

    def _stop_reading(self, slots: _Slots) -> None:
        if slots.reading is not None:
            self.pool.release([slots.reading])
            slots.reading = None

    def _prompt_end(self, request: Request) -> int:
        """The end of the prompt's last full block that leaves a token to compute."""
        return (request.num_prompt_tokens - 1) // self._block_size * self._block_size

    def _snapshots(self, request: Request, start: int, end: int) -> Iterator[int]:
        """Behind how many tokens, in order, a step from `start` to `end` keeps the state."""
        if not self._keeps:
            return
        prompt_end, last = self._prompt_end(request), end // self._block_size * self._block_size
        wanted = {prompt_end, max(prompt_end, last)}
        if self._interval is not None:
            wanted.update(range(start // self._interval * self._interval, end + 1, self._interval))
        yield from sorted(position for position in wanted if start < position <= end)
