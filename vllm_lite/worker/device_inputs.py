"""Every slot's tokens and blocks on the device, and a step's inputs made of them there.

What the host tells of a step goes over in one copy: who, from where, how far, and the blocks that
were added. So a step can be given out before the ids that the one before samples are known to
the host. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.attention.metadata import AttentionMetadata
from vllm_lite.kernels.transfer import to_device
from vllm_lite.worker.block_table import BlockTable

Int64s = npt.NDArray[np.int64]


class MirroredBlockTable(BlockTable):
    """A block table that remembers which entries changed, so that a copy can follow."""

    def __init__(
        self, num_slots: int, max_blocks: int, block_size: int, window: int | None = None
    ) -> None:
        super().__init__(num_slots, max_blocks, block_size, window)
        self.max_blocks = max_blocks
        # Place in the flattened table -> block id.
        self._changes: dict[int, int] = {}

    def set_row(self, slot: int, block_ids: list[int]) -> None:
        """Make `slot` hold exactly these blocks."""
        first = slot * self.max_blocks
        for index in range(len(block_ids), self._num_blocks[slot]):
            self._changes[first + index] = 0
        super().set_row(slot, block_ids)

    def append_row(self, slot: int, block_ids: list[int]) -> None:
        """Add blocks at the end of `slot`'s."""
        first = slot * self.max_blocks + self._num_blocks[slot]
        self._changes.update(enumerate(block_ids, first))
        super().append_row(slot, block_ids)

    def take_changes(self) -> tuple[list[int], list[int]]:
        """Places and ids of what changed since the last call."""
        changes, self._changes = self._changes, {}
        return list(changes), list(changes.values())


@dataclass(frozen=True, slots=True)
class StepRows:
    """R requests of a step, on the device; all [R] int64."""

    slots: Tensor
    starts: Tensor  # position of each request's first token in the step
    counts: Tensor


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What the model runs on: T tokens."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata


class DeviceInputs:
    """Tokens and block ids by slot, with one slot more, `padding_slot`, that no request has."""

    def __init__(
        self,
        tables: Sequence[MirroredBlockTable],
        num_slots: int,
        max_len: int,
        device: torch.device,
    ) -> None:
        """`tables`: one for each group of layers; `max_len`: tokens of a slot."""
        self.padding_slot = num_slots
        self._host_tables = tables
        self._block_size = tables[0].block_size
        self._device = device
        self._tokens = torch.zeros(num_slots + 1, max_len, dtype=torch.int32, device=device)
        self._tables = [
            torch.zeros(num_slots + 1, table.max_blocks, dtype=torch.int32, device=device)
            for table in tables
        ]

    def set_tokens(self, slot: int, token_ids: npt.NDArray[np.int32]) -> None:
        """Make the first tokens of `slot` these."""
        self._tokens[slot, : len(token_ids)].copy_(
            to_device(token_ids, self._device), non_blocking=True
        )

    def append_tokens(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Put one token at a position of each of `slots`; all [R], ids int64."""
        self._tokens[slots, positions] = token_ids.int()

    def begin_step(self, *columns: Int64s) -> list[Tensor]:
        """`columns` on the device, and the blocks that were added entered in the table there."""
        parts = list(columns)
        for host_table in self._host_tables:
            parts += [np.array(part, np.int64) for part in host_table.take_changes()]
        sizes = [len(part) for part in parts]
        sent = to_device(np.concatenate(parts), self._device).split_with_sizes(sizes)
        changes = sent[len(columns) :]
        for table, places, ids in zip(self._tables, changes[::2], changes[1::2], strict=True):
            if len(places):
                table.view(-1)[places] = ids.int()
        return list(sent[: len(columns)])

    def decode(self, rows: StepRows, max_seq_len: int) -> ModelInputs:
        """The inputs of a step with one token of each request; rows of the padding slot idle.

        Shapes depend on R and `max_seq_len` alone, so that a graph can hold these operations.
        """
        num_requests = len(rows.slots)
        return self._inputs(
            rows,
            token_slots=rows.slots,
            positions=rows.starts,
            query_start_loc=torch.arange(num_requests + 1, dtype=torch.int32, device=self._device),
            max_query_len=1,
            max_seq_len=max_seq_len,
        )

    def mixed(
        self, rows: StepRows, num_tokens: int, max_query_len: int, max_seq_len: int
    ) -> ModelInputs:
        """The inputs of a step with `num_tokens` tokens, request by request."""
        device = self._device
        ends = rows.counts.cumsum(0)
        query_start_loc = torch.zeros(len(ends) + 1, dtype=torch.int32, device=device)
        query_start_loc[1:] = ends
        row = torch.repeat_interleave(
            torch.arange(len(ends), device=device), rows.counts, output_size=num_tokens
        )
        offsets = torch.arange(num_tokens, device=device) - (ends - rows.counts)[row]
        return self._inputs(
            rows,
            token_slots=rows.slots[row],
            positions=rows.starts[row] + offsets,
            query_start_loc=query_start_loc,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
        )

    def _inputs(
        self,
        rows: StepRows,
        *,
        token_slots: Tensor,
        positions: Tensor,
        query_start_loc: Tensor,
        max_query_len: int,
        max_seq_len: int,
    ) -> ModelInputs:
        width = -(-max_seq_len // self._block_size)
        return ModelInputs(
            input_ids=self._tokens[token_slots, positions].long(),
            positions=positions,
            attention=AttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=(rows.starts + rows.counts).int(),
                block_tables=tuple(
                    self._block_table(table, host_table.window, rows, width)
                    for table, host_table in zip(self._tables, self._host_tables, strict=True)
                ),
                slot_mappings=tuple(
                    self._slot_mapping(table, token_slots, positions) for table in self._tables
                ),
                num_tokens=len(positions),
                num_requests=len(rows.slots),
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
            ),
        )

    def _slot_mapping(self, table: Tensor, token_slots: Tensor, positions: Tensor) -> Tensor:
        size = self._block_size
        block = table[token_slots, positions // size].long()
        slot_mapping = block * size + positions % size
        return slot_mapping.masked_fill(token_slots == self.padding_slot, -1)

    def _block_table(self, table: Tensor, window: int | None, rows: StepRows, width: int) -> Tensor:
        # Whole rows, whatever the width: kernels are compiled for a stride.
        rows_of_table = table[rows.slots][:, :width]
        if window is None:
            return rows_of_table
        oldest = (rows.starts - window + 1).clamp(min=0) // self._block_size
        is_old = torch.arange(width, device=self._device) < oldest[:, None]
        return rows_of_table.masked_fill(is_old, 0)
