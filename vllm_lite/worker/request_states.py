"""A worker's state of each request between steps: a slot with its tokens and its blocks.

A reused slot is reset whole; a preempted request is forgotten and comes back as new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import NewRequestData, SchedulerOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sample.states import TokenTable
from vllm_lite.worker.block_table import BlockTables
from vllm_lite.worker.drafting.interface import DraftRows, StepDrafter
from vllm_lite.worker.step_plan import Int32s, StepPlan


@dataclass(slots=True)
class PoolingProgress:
    """A pooling request between its steps."""

    params: PoolingParams
    # Of its tokens so far, as float32.
    answers: list[bytes] = field(default_factory=list)
    # Its first hidden state, or the sum of them, [N].
    row: Tensor | None = None


class RequestStates:
    """Tokens, progress and blocks by slot; slots by request id."""

    def __init__(self, config: VllmConfig, tables: BlockTables, has_states: bool = False) -> None:
        """`has_states`: whether layers have states, beside those of `tables`."""
        num_slots, max_model_len = config.scheduler.max_num_seqs, config.model.max_model_len
        # Rows are touched only as far as requests reach. A prompt may fill the context, and one
        # token is still sampled after it.
        self.tokens = TokenTable(
            token_ids=np.zeros((num_slots, max_model_len + 1), np.int32),
            num_prompt_tokens=np.zeros(num_slots, np.int64),
        )
        # Tokens of each slot that the steps so far compute; the next step starts there.
        self.num_computed_tokens = np.zeros(num_slots, np.int64)
        # How many requests have had each slot: an answer may come after its request left.
        self.tenancies = np.zeros(num_slots, np.int64)
        self.tables = tables
        self.has_states = has_states
        # slot -> whose earlier texts its drafts may come from.
        self.scopes: dict[int, str] = {}
        # slot -> candidates a prompt position, for the requests that want prompt logprobs.
        self.prompt_logprobs: dict[int, int] = {}
        # slot -> what is wanted and gathered so far, for the requests that pool.
        self.pooling: dict[int, PoolingProgress] = {}
        self.vocab_size = config.facts.vocab_size
        self._slots: dict[str, int] = {}
        self._free = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._slots)

    def plan(self, step: SchedulerOutput, drafter: StepDrafter | None = None) -> StepPlan:
        """Turn a step into arrays and count it as computed; all its requests are known here.

        Drafts count once they are accepted. A request with fewer drafts than the step allows
        computes fewer tokens.
        """
        request_ids = list(step.num_scheduled_tokens)
        slots = np.array([self._slots[request_id] for request_id in request_ids], np.int64)
        counts = np.fromiter(step.num_scheduled_tokens.values(), np.int64, len(slots))
        verified = np.fromiter(step.num_verified.values(), np.int64, len(slots))
        starts = self.num_computed_tokens[slots]
        if drafter is not None or step.drafts:
            known = starts + counts - np.maximum(verified - 1, 0)
            drafts: list[Sequence[int] | Int32s] = [
                step.drafts.get(request_id, ()) for request_id in request_ids
            ]
            if drafter is not None:
                has_own = np.fromiter(map(bool, drafts), np.bool_, len(drafts))
                most = np.where(has_own, 0, np.maximum(verified - 1, 0))
                found = drafter.propose(DraftRows(slots, starts, known, most))
                drafts = [own or more for own, more in zip(drafts, found, strict=True)]
            for row in (verified > 1).nonzero()[0].tolist():
                end, ids = int(known[row]), drafts[row]
                self.tokens.token_ids[slots[row], end : end + len(ids)] = ids
                verified[row] = 1 + len(ids)
            counts = known - starts + np.maximum(verified - 1, 0)
            self.num_computed_tokens[slots] = known
            sampling = np.repeat(np.arange(len(slots)), verified)
            firsts = known + verified - verified.cumsum()
            positions = firsts[sampling] + np.arange(len(sampling))
        else:
            ends = self.num_computed_tokens[slots] = starts + counts
            sampling = verified.nonzero()[0]
            positions = ends[sampling]
        return StepPlan(
            request_ids,
            slots,
            starts,
            counts,
            verified,
            sampling,
            slots[sampling],
            positions,
            *(state_indices(step) if self.has_states else ()),
        )

    def add(self, request: NewRequestData) -> int:
        """Fill a free slot for `request`; returns the slot."""
        if request.request_id in self._slots:
            raise ValueError(f"request {request.request_id} is already here")
        slot = self._free.pop()
        self._slots[request.request_id] = slot
        self.tenancies[slot] += 1
        prompt, output = request.prompt_token_ids, request.output_token_ids
        row = self.tokens.token_ids[slot]
        row[: len(prompt)] = prompt
        row[len(prompt) : len(prompt) + len(output)] = output
        self.tokens.num_prompt_tokens[slot] = len(prompt)
        self.num_computed_tokens[slot] = request.num_computed_tokens
        self.tables.set_row(slot, request.block_ids, request.num_computed_tokens)
        self.scopes[slot] = request.scope
        task = request.task
        if isinstance(task, PoolingParams):
            self.pooling[slot] = PoolingProgress(task)
            if task.token_type_start is not None:
                row[task.token_type_start : len(prompt)] += self.vocab_size
        # A request with outputs had its whole prompt reported before it was preempted.
        elif task.prompt_logprobs is not None and not output:
            self.prompt_logprobs[slot] = task.prompt_logprobs
        return slot

    def append_blocks(self, new_block_ids: dict[str, list[list[int]]]) -> None:
        """Add blocks to requests that are known, a list for each group."""
        for request_id, block_ids in new_block_ids.items():
            slot = self._slots[request_id]
            self.tables.append_row(slot, block_ids, int(self.num_computed_tokens[slot]))

    def output_of(self, request_id: str, num_unread: int) -> tuple[Int32s, str]:
        """A request's output tokens [L], but of so many unread answers, and its scope, if known."""
        slot = self._slots.get(request_id)
        if slot is None:
            return np.empty(0, np.int32), ""
        start, end = self.tokens.num_prompt_tokens[slot], self.num_computed_tokens[slot] + 1
        return self.tokens.token_ids[slot, start : end - num_unread], self.scopes[slot]

    def remove(self, request_id: str) -> int | None:
        """Free a request's slot and return it; None for an unknown request."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self.prompt_logprobs.pop(slot, None)
            self.pooling.pop(slot, None)
            del self.scopes[slot]
            self._free.append(slot)
        return slot


def state_indices(step: SchedulerOutput) -> tuple[Int32s, Int32s]:
    """Slots of states that the requests of a step [R] and their tokens [T] read and write.

    -1 where the step names none: the state begins with zeros, or is not kept.
    """
    state_in = np.full(len(step.num_scheduled_tokens), -1, np.int32)
    state_out = np.full(step.total_num_scheduled_tokens, -1, np.int32)
    start = 0
    for row, (request_id, count) in enumerate(step.num_scheduled_tokens.items()):
        state = step.states.get(request_id)
        if state is not None:
            state_in[row] = state.read
            for offset, slot in state.writes:
                state_out[start + offset] = slot
        start += count
    return state_in, state_out
