"""Drafts of heads that read the target's hidden states, once a step has computed them.

A head's keys and values of a position join its hidden state and the token behind it. They are
written in the step that computes the position, so that whoever hits its block finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.kernels.metadata import attention_metadata
from vllm_lite.kernels.transfer import to_device
from vllm_lite.models.draft_head import DraftHead
from vllm_lite.models.medusa import MedusaModel
from vllm_lite.worker.batch import HostInputs
from vllm_lite.worker.drafting.interface import DraftRows, StepDrafter
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s, Int64s, StepPlan


class LastRows:
    """A row of numbers for each slot, behind so many tokens of its request."""

    def __init__(self, states: RequestStates) -> None:
        self._states = states
        num_slots = len(states.tenancies)
        self._tenancies = np.full(num_slots, -1, np.int64)
        self._positions = np.zeros(num_slots, np.int64)
        self._rows: list[Tensor] = []

    def store(self, slots: Int64s, num_tokens: Int64s, *rows: Tensor) -> None:
        """Keep `rows` [R, N] of the slots [R], behind so many tokens."""
        if not self._rows:
            self._rows = [row.new_zeros(len(self._tenancies), row.shape[1]) for row in rows]
        at = to_device(slots, rows[0].device)
        for kept, new in zip(self._rows, rows, strict=True):
            kept[at] = new
        self._positions[slots] = num_tokens
        self._tenancies[slots] = self._states.tenancies[slots]

    def are_of(self, slots: Int64s, num_tokens: Int64s) -> npt.NDArray[np.bool_]:
        """Whether the slots [R] have rows behind so many tokens of their requests of now."""
        is_theirs = self._tenancies[slots] == self._states.tenancies[slots]
        found: npt.NDArray[np.bool_] = is_theirs & (self._positions[slots] == num_tokens)
        return found

    def take(self, slots: Int64s) -> list[Tensor]:
        """The rows of `slots`, [R, N] each."""
        return [kept[to_device(slots, kept.device)] for kept in self._rows]


class HeadDrafts(StepDrafter):
    """Guesses token after token by a head with layers of its own."""

    observes = True

    def __init__(self, config: VllmConfig, head: DraftHead, inputs: HostInputs) -> None:
        """`config` is the head's own."""
        self._head, self._inputs = head, inputs
        self._states: RequestStates = inputs.states
        self._max_len = config.model.max_model_len
        # Inputs of the output head and of the next pass.
        self._last = LastRows(inputs.states)
        # Hidden states of the newest step's layers that the head reads beside the last ones.
        self.taps: Sequence[Tensor] = ()

    @torch.inference_mode()
    def observe(self, hidden: Tensor, plan: StepPlan) -> None:
        slots, starts = plan.slots, plan.starts
        ends = np.minimum(self._states.num_computed_tokens[slots], self._max_len)
        counts = np.maximum(ends - starts, 0)
        if not (is_whole := bool((counts == plan.counts).all())):
            firsts = plan.counts.cumsum() - plan.counts
            offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
            kept = to_device(np.repeat(firsts, counts) + offsets, hidden.device)
        rows = [part if is_whole else part[kept] for part in (hidden, *self.taps)]
        going = counts > 0
        slots, starts, counts = slots[going], starts[going], counts[going]
        if len(slots):
            joined = self._head.hidden_of(rows[0], rows[1:])
            self._last.store(slots, starts + counts, *self._run(slots, starts, counts, joined))

    @torch.inference_mode()
    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        most = np.clip(self._max_len - rows.ends, 0, rows.most)
        most *= self._last.are_of(rows.slots, rows.ends - 1)
        drafts = np.zeros((len(most), int(most.max(initial=0))), np.int32)
        going = (most > 0).nonzero()[0]
        if len(going):
            last, hidden = self._last.take(rows.slots[going])
        for count in range(drafts.shape[1]):
            ids = self._head.greedy_tokens(last).cpu().numpy()
            drafts[going, count] = ids
            slots, ends = rows.slots[going], rows.ends[going] + count
            self._states.tokens.token_ids[slots, ends] = ids
            goes_on = most[going] > count + 1
            going = going[goes_on]
            if not len(going):
                break
            # The key of the position before the token that was drafted.
            hidden = hidden[torch.from_numpy(goes_on).to(hidden.device)]
            ones = np.ones_like(going)
            last, hidden = self._run(slots[goes_on], ends[goes_on] - 1, ones, hidden)
        return [ids[:count] for ids, count in zip(drafts, most.tolist(), strict=True)]

    def _run(
        self, slots: Int64s, starts: Int64s, counts: Int64s, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute positions with hidden states [T, N]; both results of the last ones [R, N]."""
        made = self._inputs.inputs_of(slots, starts, counts)
        positions = np.repeat(starts - counts.cumsum() + counts, counts) + np.arange(len(hidden))
        behind = self._states.tokens.token_ids[np.repeat(slots, counts), positions + 1]
        with attention_metadata(made.attention):
            input_ids = to_device(behind.astype(np.int64), hidden.device)
            results = self._head.forward(input_ids, made.positions, hidden)
        if len(hidden) == len(slots):
            return results
        at = made.attention.query_start_loc[1:].long() - 1
        return results[0][at], results[1][at]


class MedusaDrafts(StepDrafter):
    """Guesses several tokens of one hidden state."""

    observes = True

    def __init__(self, head: MedusaModel, states: RequestStates) -> None:
        self._head, self._states = head, states
        self._last = LastRows(states)

    @torch.inference_mode()
    def observe(self, hidden: Tensor, plan: StepPlan) -> None:
        ends = self._states.num_computed_tokens[plan.slots]
        at = plan.counts.cumsum() - plan.counts + ends - plan.starts - 1
        self._last.store(plan.slots, ends, hidden[to_device(at, hidden.device)])

    @torch.inference_mode()
    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        most = np.minimum(rows.most, self._head.most)
        most = most * self._last.are_of(rows.slots, rows.ends - 1)
        drafts = np.zeros((len(most), int(most.max(initial=0))), np.int32)
        going = (most > 0).nonzero()[0]
        if len(going):
            (last,) = self._last.take(rows.slots[going])
            drafts[going] = self._head.propose(last, drafts.shape[1]).cpu().numpy()
        return [ids[:count] for ids, count in zip(drafts, most.tolist(), strict=True)]
