"""Which cache blocks each slot's tokens lie in.

Knows slots and block ids, not requests. Entries past a slot's blocks are 0, the null block, and
so are those that its window has left: their blocks may be another's by now.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class BlockTable:
    """Block ids by slot."""

    def __init__(
        self, num_slots: int, max_blocks: int, block_size: int, window: int | None = None
    ) -> None:
        """`window`: tokens that every layer looks back, itself included; None: all of them."""
        self.block_size = block_size
        self.window = window
        self._table = np.zeros((num_slots, max_blocks), np.int32)
        self._num_blocks = [0] * num_slots

    def set_row(self, slot: int, block_ids: list[int]) -> None:
        """Make `slot` hold exactly these blocks."""
        self._table[slot, : self._num_blocks[slot]] = 0
        self._num_blocks[slot] = 0
        self.append_row(slot, block_ids)

    def append_row(self, slot: int, block_ids: list[int]) -> None:
        """Add blocks at the end of `slot`'s."""
        start = self._num_blocks[slot]
        end = start + len(block_ids)
        self._table[slot, start:end] = block_ids
        self._num_blocks[slot] = end

    def gather(self, slots: Int64s, starts: Int64s, num_tokens: int) -> Int32s:
        """Rows of `slots` [R], wide enough for `num_tokens` tokens each; [R, M], a copy.

        `starts` [R] is each row's first position to compute, from which its window counts.
        """
        width = -(-num_tokens // self.block_size)
        rows = self._table[slots, :width]
        if self.window is not None:
            # Kernels read whole stretches and mask what is too old, but 0 times NaN is NaN.
            oldest = np.maximum(starts - self.window + 1, 0) // self.block_size
            rows[np.arange(width) < oldest[:, None]] = 0
        return rows

    def slot_mapping(self, slots: Int64s, positions: Int64s) -> Int64s:
        """Cache position, block * block_size + offset, of each (slot, position); all [T]."""
        block, offset = np.divmod(positions, self.block_size)
        result: Int64s = self._table[slots, block] * np.int64(self.block_size) + offset
        return result


_Table = TypeVar("_Table", bound=BlockTable)


def block_tables(config: VllmConfig, plan: KVCachePlan, kind: type[_Table]) -> list[_Table]:
    """A table for each group of layers, for requests of the greatest length."""
    size = plan.block_size
    max_blocks = -(-(config.model.max_model_len + 1) // size)
    return [
        kind(config.scheduler.max_num_seqs, max_blocks, size, group.sliding_window)
        for group in plan.groups
    ]
