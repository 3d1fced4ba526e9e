"""The slots of states: one for each running request to work in, and snapshots for prefix hits.

A prefix is hit where its state was kept: behind the last full block of a prompt, behind the last of
a request, and every so many tokens. No state is ever copied, for a step may read one slot and write
another. Invariants: a snapshot is published only when its tokens are computed; no request writes to
a slot that another one holds.
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

    def find_hit(self, hashes: Sequence[bytes]) -> tuple[int, Block | None]:
        """The longest prefix of `hashes` that has a snapshot behind it: its length and the slot."""
        return len(hashes), None

    def try_admit(self, request: Request, hit: Block | None) -> bool:
        """Give a request a slot to work in, to begin with the state `hit`; False without a slot."""
        return True

    def plan_step(
        self, requests: Sequence[Request], counts: Mapping[str, int]
    ) -> dict[str, StateSlots]:
        """Where each request's next tokens, by its id so many, find their state and leave it."""
        return {}

    def publish_computed(self, request: Request) -> None:
        """Let others hit the snapshots of tokens that are computed by now."""

    def withdraw(self, request: Request) -> None:
        """Let nobody hit a snapshot on the request's way any more."""

    def free(self, request: Request) -> None:
        """Take back the slots of a request; one without slots is fine."""

    def try_reset(self) -> bool:
        """Forget all snapshots; refused while a request holds slots."""
        return True


class _Slots:
    """Those of one request, each held once for each use."""

    __slots__ = ("latest", "reading", "rolling", "unpublished", "working")

    def __init__(self, working: Block, hit: Block | None) -> None:
        self.working = working
        # Where the next step finds the state; None: zeros.
        self.latest = hit
        # What the planned step reads, if it is no slot to work in.
        self.reading: Block | None = None
        # Numbers of tokens, and the state behind them.
        self.unpublished: list[tuple[int, Block]] = []
        # The last snapshot behind the prompt, and its content.
        self.rolling: tuple[Block, bytes] | None = None


class StatePool(NoStates):
    """Hands out slots, and finds snapshots by the hash of the last block before them."""

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

    def find_hit(self, hashes: Sequence[bytes]) -> tuple[int, Block | None]:
        """The longest prefix of `hashes` that has a snapshot behind it: its length and the slot."""
        for length in range(len(hashes), 0, -1):
            block = self.pool.find(hashes[length - 1])
            if block is not None:
                return length, block
        return 0, None

    def try_admit(self, request: Request, hit: Block | None) -> bool:
        """Give a request a slot to work in, to begin with the state `hit`; False without a slot."""
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
        """Where each request's next tokens, by its id so many, find their state and leave it."""
        return {
            request.request_id: self._plan(request, counts[request.request_id])
            for request in requests
        }

    def _plan(self, request: Request, num_new_tokens: int) -> StateSlots:
        """Where a request's next tokens find their state and leave it.

        A slot that a step reads is kept until the next step is planned: in one step nobody else may
        write to it.
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
        """Let others hit the snapshots of tokens that are computed by now."""
        slots = self._slots[request.request_id]
        while slots.unpublished and slots.unpublished[0][0] <= request.num_computed_tokens:
            position, block = slots.unpublished.pop(0)
            content = request.block_hashes[position // self._block_size - 1]
            self.pool.publish(block, content)
            self.pool.release([block])
            if position > self._prompt_end(request):
                # Whoever goes on from here goes on from the last one.
                if slots.rolling is not None and slots.rolling[0].content_hash == slots.rolling[1]:
                    self.pool.put_first(slots.rolling[0])
                slots.rolling = block, content

    def withdraw(self, request: Request) -> None:
        """Let nobody hit a snapshot on the request's way any more."""
        found = (self.pool.find(content) for content in request.block_hashes)
        self.pool.withdraw([block for block in found if block is not None])

    def free(self, request: Request) -> None:
        """Take back the slots of a request; one without slots is fine."""
        slots = self._slots.pop(request.request_id, None)
        if slots is None:
            return
        self._stop_reading(slots)
        if slots.latest is not None and slots.latest is not slots.working:
            self.pool.release([slots.latest])
        self.pool.release([block for _, block in slots.unpublished])
        self.pool.release([slots.working])

    def try_reset(self) -> bool:
        """Forget all snapshots; refused while a request holds slots."""
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
