"""The cache blocks of each slot's tokens, for every group of layers.

Entries past a slot's blocks are 0, the null block, and so are those that its window has left, whose
blocks may be reused. Groups differ in their windows alone, so that one array operation serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class BlockTables:
    """Block ids by group [G], slot and block."""

    def __init__(
        self, num_slots: int, max_blocks: int, block_size: int, windows: Sequence[int | None]
    ) -> None:
        """`windows` [G]: tokens that a group's layers look back, their own included; None: all."""
        self.block_size = block_size
        self._table = np.zeros((len(windows), num_slots, max_blocks), np.int32)
        self._num_blocks = [0] * num_slots
        self._windows = {g: window for g, window in enumerate(windows) if window is not None}
        # Told of the blocks, a list for each group, that begin to hold other tokens.
        self.on_new_blocks: Callable[[list[list[int]]], None] = lambda block_ids: None
        # Entries ahead of its window, by group and slot.
        self._num_left = {group: [0] * num_slots for group in self._windows}

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, slots, and blocks that a slot can hold."""
        groups, slots, blocks = self._table.shape
        return groups, slots, blocks

    def set_row(self, slot: int, block_ids: list[list[int]], num_computed: int = 0) -> None:
        """Set the blocks of `slot`, as many in each group; the first hold so many tokens."""
        for group in range(len(self._table)):
            self._write(group, slot, 0, [0] * self._num_blocks[slot])
        for num_left in self._num_left.values():
            num_left[slot] = 0
        self._num_blocks[slot] = 0
        num_hit = num_computed // self.block_size
        self._append(slot, block_ids)
        self.on_new_blocks([ids[num_hit:] for ids in block_ids])

    def append_row(self, slot: int, block_ids: list[list[int]], start: int) -> None:
        """Add blocks at the end of `slot`'s, as many in each group.

        `start`: its next position to compute; blocks that no window from there on reaches may be
        reused and are dropped: kernels read whole pages and mask old tokens, but 0 * NaN is NaN.
        """
        for group, window in self._windows.items():
            num_left = self._num_left[group]
            oldest = max(start - window + 1, 0) // self.block_size
            if oldest > num_left[slot]:
                self._write(group, slot, num_left[slot], [0] * (oldest - num_left[slot]))
                num_left[slot] = oldest
        self._append(slot, block_ids)
        self.on_new_blocks(block_ids)

    def _append(self, slot: int, block_ids: list[list[int]]) -> None:
        end = self._num_blocks[slot]
        for group, ids in enumerate(block_ids):
            self._write(group, slot, end, ids)
        self._num_blocks[slot] = end + (len(block_ids[0]) if block_ids else 0)

    def capacity(self, slots: Int64s) -> Int64s:
        """Tokens that the blocks of `slots` [R] hold."""
        return np.array([self._num_blocks[slot] for slot in slots], np.int64) * self.block_size

    def gather(self, slots: Int64s, num_tokens: int) -> Int32s:
        """Rows of `slots` [R], wide enough for `num_tokens` tokens each; [G, R, M], a copy."""
        # Unlike an index, take() lays out each group densely.
        return self._table[:, :, : -(-num_tokens // self.block_size)].take(slots, axis=1)

    def slot_mapping(self, slots: Int64s, positions: Int64s) -> Int64s:
        """Cache position, block * block_size + offset, of each (slot, position) [T]; [G, T]."""
        block, offset = np.divmod(positions, self.block_size)
        first = np.multiply(
            self._table[:, slots, block], self.block_size, dtype=np.int64, order="C"
        )
        first += offset
        return first

    def _write(self, group: int, slot: int, first: int, block_ids: list[int]) -> None:
        self._table[group, slot, first : first + len(block_ids)] = block_ids


_Tables = TypeVar("_Tables", bound=BlockTables)


def block_tables(config: VllmConfig, plan: KVCachePlan, kind: type[_Tables]) -> _Tables:
    """Tables of the plan's groups, for requests of the greatest length."""
    max_blocks = -(-(config.model.max_model_len + 1) // plan.block_size)
    windows = [group.sliding_window for group in plan.groups]
    return kind(config.scheduler.max_num_seqs, max_blocks, plan.block_size, windows)
