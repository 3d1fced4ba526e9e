"""Drafts of a second, smaller model, whose keys and values lie in the blocks of the target's.

Invariant: a block that the target's tokens fill holds the draft model's keys and values of them
too, so that a prefix hit serves both. Within a block they may come later, several at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.kernels.metadata import attention_metadata
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.worker.batch import HostInputs
from vllm_lite.worker.drafts import DraftRows
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s, Int64s, StepPlan

# Input ids [T] and positions [T] to hidden states [T, N], inside `attention_metadata(...)`.
Forward = Callable[[Tensor, Tensor], Tensor]


def most_draft_tokens(config: VllmConfig) -> int:
    """Tokens that the draft model computes at a time: a step's, and what one request is behind."""
    return config.scheduler.max_num_batched_tokens + config.cache.block_size


class DraftModel:
    """Guesses what the draft model finds likeliest, for all requests of a step at once."""

    observes, follows = False, True

    def __init__(
        self, config: VllmConfig, model: CausalLM, forward: Forward, inputs: HostInputs
    ) -> None:
        """`config` is the draft model's own, `forward` its pass over any rows."""
        self._model, self._forward, self._inputs = model, forward, inputs
        self._states: RequestStates = inputs.states
        self._vocab_size = config.facts.vocab_size
        self._max_len = config.model.max_model_len
        self._block_size = config.cache.block_size
        self._most_tokens = most_draft_tokens(config)
        num_slots = len(self._states.tenancies)
        # Tokens of each slot whose keys and values are computed, and for which of its requests.
        self._num_computed = np.zeros(num_slots, np.int64)
        self._tenancies = np.zeros(num_slots, np.int64)

    @torch.inference_mode()
    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        """Up to `rows.most` tokens of each request that may follow its known ones."""
        slots, ends, size = rows.slots, rows.ends, self._block_size
        tenancies = self._states.tenancies[slots]
        is_new = self._tenancies[slots] != tenancies
        self._tenancies[slots] = tenancies
        done = np.minimum(np.where(is_new, rows.starts, self._num_computed[slots]), rows.starts)
        most = np.clip(self._max_len - ends, 0, rows.most)
        # The last draft's keys come a step later: it must not be the one to fill a block.
        most -= (most > 0) & ((ends + most) % size == 0)
        ends = np.minimum(ends, self._max_len)
        is_due = (done < ends) & ((most > 0) | (ends // size > done // size))
        self._num_computed[slots] = np.where(is_due, ends + np.maximum(most - 1, 0), done)
        drafts = np.zeros((len(slots), int(most.max(initial=0))), np.int32)
        for part in self._parts(is_due.nonzero()[0], ends - done):
            last = self._run(slots[part], done[part], ends[part] - done[part])
            going = part[most[part] > 0]
            last = last[torch.from_numpy(most[part] > 0).to(last.device)]
            for count in range(drafts.shape[1]):
                if not len(going):
                    break
                ids = self._model.greedy_tokens(last)[0].cpu().numpy()
                drafts[going, count] = ids
                self._states.tokens.token_ids[slots[going], ends[going] + count] = ids
                goes_on = most[going] > count + 1
                going = going[goes_on]
                if len(going):
                    last = self._run(slots[going], ends[going] + count, np.ones_like(going))
        return [self._known(ids[:count]) for ids, count in zip(drafts, most.tolist(), strict=True)]

    def observe(self, hidden: Tensor, plan: StepPlan) -> None:
        """Do nothing: tokens are all that it reads."""

    def remember(self, request_id: str, num_unread: int) -> None:
        """Do nothing."""

    def _run(self, slots: Int64s, starts: Int64s, counts: Int64s) -> Tensor:
        """Compute tokens from the positions `starts` on; hidden states of the last ones [R, N]."""
        made = self._inputs.inputs_of(slots, starts, counts)
        # The target may have ids, of no token, that the draft model has no vector for.
        input_ids = made.input_ids.clamp_(max=self._vocab_size - 1)
        with attention_metadata(made.attention):
            hidden = self._forward(input_ids, made.positions)
        if made.attention.num_tokens == len(slots):
            return hidden
        return hidden[made.attention.query_start_loc[1:].long() - 1]

    def _parts(self, rows: Int64s, counts: Int64s) -> list[Int64s]:
        """`rows` in groups of no more than so many tokens."""
        parts: list[list[int]] = []
        room = 0
        for row in rows.tolist():
            if not parts or counts[row] > room:
                parts.append([])
                room = self._most_tokens
            parts[-1].append(row)
            room -= int(counts[row])
        return [np.array(part, np.int64) for part in parts]

    def _known(self, ids: Int32s) -> Int32s:
        """The ids before the first that the target does not have."""
        beyond = (ids >= self._states.vocab_size).nonzero()[0]
        return ids[: beyond[0]] if len(beyond) else ids
