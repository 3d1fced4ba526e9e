"""Every slot's tokens and blocks on the device, and a step's inputs built there.

The host's part of a step goes over in one copy: slots, starts, counts and added blocks. So a step
can be launched before the host knows the ids that the previous one samples. Nothing here waits for
the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_lite.kernels.metadata import AttentionMetadata, StateIndices
from vllm_lite.kernels.transfer import to_device
from vllm_lite.worker.batch import Batch, ModelInputs, StepRows
from vllm_lite.worker.block_table import BlockTables
from vllm_lite.worker.graph_shapes import GraphShape
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s, Int64s, StepPlan


class MirroredBlockTables(BlockTables):
    """Block tables that remember which entries changed, so that a copy can follow.

    The copy has one slot more, which no request has.
    """

    def __init__(
        self, num_slots: int, max_blocks: int, block_size: int, windows: Sequence[int | None]
    ) -> None:
        # By four, so that the rows of each group begin at 16 bytes: kernels are compiled for that.
        super().__init__(num_slots, -(-max_blocks // 4) * 4, block_size, windows)
        # Place in the flattened copy -> block id.
        self._changes: dict[int, int] = {}

    def take_changes(self) -> tuple[list[int], list[int]]:
        """Places and ids of the entries that changed since the last call."""
        changes, self._changes = self._changes, {}
        return list(changes), list(changes.values())

    def _write(self, group: int, slot: int, first: int, block_ids: list[int]) -> None:
        _, slots, blocks = self.shape
        place = (group * (slots + 1) + slot) * blocks + first
        self._changes.update(enumerate(block_ids, place))
        super()._write(group, slot, first, block_ids)


class DeviceInputs:
    """Tokens and block ids by slot, with one slot more, `padding_slot`, that no request has."""

    runs_ahead = True

    def __init__(
        self, states: RequestStates, tables: MirroredBlockTables, device: torch.device
    ) -> None:
        """`tables`: those of `states`."""
        num_slots, max_len = states.tokens.token_ids.shape
        self.states = states
        self.padding_slot = num_slots
        self._max_len = max_len - 1
        self._host_tables = tables
        self._block_size = tables.block_size
        self._device = device
        self._tokens = torch.zeros(num_slots + 1, max_len, dtype=torch.int32, device=device)
        groups, _, blocks = tables.shape
        self._table = torch.zeros(groups, num_slots + 1, blocks, dtype=torch.int32, device=device)

    def set_tokens(self, slot: int, start: int, token_ids: Int32s) -> None:
        """Set the tokens of `slot` from the position `start` on."""
        self._tokens[slot, start : start + len(token_ids)].copy_(
            to_device(token_ids, self._device), non_blocking=True
        )

    def begin(self, plan: StepPlan) -> Batch:
        """Copy a step's plan to the device."""
        columns = [plan.slots, plan.starts, plan.counts, plan.last_tokens]
        columns += [plan.sampling_slots, plan.sampled_positions]
        if plan.state_in is not None and plan.state_out is not None:
            columns += [plan.state_in.astype(np.int64), plan.state_out.astype(np.int64)]
        # Columns of the step, then those of the rows that sample.
        slots, starts, counts, last_tokens, *more = self._send(*columns)
        rows = StepRows(slots, starts, counts, StateIndices(*more[2:]) if more[2:] else None)
        return Batch(plan, None if plan.samples_all else last_tokens, rows, (more[0], more[1]))

    def idle_rows(self, shape: GraphShape) -> StepRows:
        """Rows of the padding slot, which write to no cache: of one token, or in longer steps none.

        The columns of the states are as long as the shape says.
        """
        slots = torch.full((shape.num_rows,), self.padding_slot, device=self._device)
        states = None
        if self.states.has_states:
            written = slots.new_full((shape.num_tokens,), -1)
            states = StateIndices(torch.full_like(slots, -1), written)
        counts = torch.full_like(slots, int(shape.is_decode))
        return StepRows(slots, torch.zeros_like(slots), counts, states)

    def append(self, batch: Batch, token_ids: Tensor) -> None:
        """Store the sampled ids of `batch`, [S] int64, for later steps."""
        assert batch.targets is not None
        self.append_at(*batch.targets, token_ids)

    def append_at(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Store ids, all [S] int64; a graph can hold this."""
        self._tokens[slots, positions] = token_ids.int()

    def _send(self, *columns: Int64s) -> list[Tensor]:
        """Copy `columns` to the device, and enter the added blocks in the table there."""
        changes = [np.array(part, np.int64) for part in self._host_tables.take_changes()]
        parts = [*columns, *changes]
        sizes = [len(part) for part in parts]
        *sent, places, ids = to_device(np.concatenate(parts), self._device).split_with_sizes(sizes)
        if len(places):
            self._table.view(-1)[places] = ids.int()
        return sent

    def graph_inputs(self, rows: StepRows, shape: GraphShape) -> ModelInputs:
        """The inputs of a step of a shape, on which alone their shapes depend.

        A graph can hold these operations. Rows of the padding slot idle, and tokens behind the last
        row's are of no request.
        """
        if not shape.is_decode:
            return self._inputs_of(rows, shape.num_tokens, shape.num_tokens, shape.max_seq_len)
        return self._inputs(
            rows,
            token_slots=rows.slots,
            positions=rows.starts,
            query_start_loc=torch.arange(
                shape.num_rows + 1, dtype=torch.int32, device=self._device
            ),
            max_query_len=1,
            max_seq_len=shape.max_seq_len,
        )

    def model_inputs(self, batch: Batch) -> ModelInputs:
        """The inputs of a step of any tokens, request by request."""
        assert batch.rows is not None
        plan = batch.plan
        num_tokens, longest = int(plan.counts.sum()), int(plan.counts.max())
        max_seq_len = int((plan.starts + plan.counts).max())
        return self._inputs_of(batch.rows, num_tokens, longest, max_seq_len)

    def _inputs_of(
        self, rows: StepRows, num_tokens: int, max_query_len: int, max_seq_len: int
    ) -> ModelInputs:
        """Of so many tokens, those behind the last row's in the padding slot."""
        ends = rows.counts.cumsum(0)
        tokens = torch.arange(num_tokens, device=self._device)
        row = torch.searchsorted(ends, tokens, right=True).clamp_(max=len(ends) - 1)
        is_spare = tokens >= ends[-1]
        positions = rows.starts[row] + tokens - (ends - rows.counts)[row]
        return self._inputs(
            rows,
            token_slots=rows.slots[row].masked_fill(is_spare, self.padding_slot),
            positions=positions.masked_fill(is_spare, 0),
            query_start_loc=pad(ends, (1, 0)).int(),
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
                # Whole rows, whatever the width: kernels are compiled for a stride.
                block_tables=self._table[:, rows.slots][..., :width].unbind(),
                slot_mappings=self._slot_mapping(token_slots, positions).unbind(),
                num_tokens=len(positions),
                num_requests=len(rows.slots),
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
                states=None
                if rows.states is None
                else StateIndices(*(indices.int() for indices in rows.states)),
            ),
        )

    def _slot_mapping(self, token_slots: Tensor, positions: Tensor) -> Tensor:
        """[G, T]."""
        size = self._block_size
        block = self._table[:, token_slots, positions // size].long()
        slot_mapping = block * size + positions % size
        return slot_mapping.masked_fill(token_slots == self.padding_slot, -1)
