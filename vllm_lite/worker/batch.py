"""One step's requests as arrays: what the model runs on and which rows sample.

Built by whole-array operations; the cost for each request is a few list entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.attention.metadata import AttentionMetadata
from vllm_lite.kernels.transfer import to_device
from vllm_lite.worker.request_states import RequestStates

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of R requests, request by request."""

    request_ids: list[str]  # [R]
    slots: Int64s  # [R]
    starts: Int64s  # [R]: position of each request's first token in this step
    num_scheduled: Int64s  # [R]
    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata
    # Requests (rows of the batch) whose last known token is in this step.
    sampling_rows: Int64s
    # Token index of that last token, [len(sampling_rows)]; None: it is 0..T-1.
    logits_indices: Tensor | None

    @property
    def sampling_slots(self) -> Int64s:
        """Slots of the requests that sample."""
        return self.slots[self.sampling_rows]


def build_batch(
    states: RequestStates, num_scheduled_tokens: dict[str, int], device: torch.device
) -> Batch:
    """The batch of a step, in the order of `num_scheduled_tokens`; every count is positive."""
    request_ids = list(num_scheduled_tokens)
    num_requests = len(request_ids)
    slots = np.array(states.slots(request_ids), np.int64)
    counts = np.fromiter(num_scheduled_tokens.values(), np.int64, num_requests)
    starts = states.num_computed_tokens[slots]
    ends = starts + counts
    query_start_loc = np.zeros(num_requests + 1, np.int32)
    np.cumsum(counts, out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])
    is_decode = num_tokens == num_requests
    if is_decode:
        token_slots, positions = slots, starts
    else:
        token_slots = np.repeat(slots, counts)
        # Token t of the batch is token t - query_start_loc[r] of its request r.
        positions = np.arange(num_tokens) + np.repeat(starts - query_start_loc[:-1], counts)
    input_ids = states.tokens.token_ids[token_slots, positions].astype(np.int64)
    max_seq_len = int(ends.max())
    sampling_rows = (ends == states.tokens.num_tokens[slots]).nonzero()[0]
    samples_every_token = is_decode and len(sampling_rows) == num_requests
    last_tokens = query_start_loc[1:][sampling_rows].astype(np.int64) - 1

    def tensor(array: npt.NDArray[np.generic]) -> Tensor:
        return to_device(array, device)

    return Batch(
        request_ids=request_ids,
        slots=slots,
        starts=starts,
        num_scheduled=counts,
        input_ids=tensor(input_ids),
        positions=tensor(positions),
        attention=AttentionMetadata(
            query_start_loc=tensor(query_start_loc),
            seq_lens=tensor(ends.astype(np.int32)),
            block_tables=tuple(
                tensor(table.gather(slots, starts, max_seq_len)) for table in states.tables
            ),
            slot_mappings=tuple(
                tensor(table.slot_mapping(token_slots, positions)) for table in states.tables
            ),
            num_tokens=num_tokens,
            num_requests=num_requests,
            max_query_len=int(counts.max()),
            max_seq_len=max_seq_len,
        ),
        sampling_rows=sampling_rows,
        logits_indices=None if samples_every_token else tensor(last_tokens),
    )
