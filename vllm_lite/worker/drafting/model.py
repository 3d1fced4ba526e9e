"""Drafts of a second, smaller model, whose keys and values lie in the blocks of the target's.

The draft model computes a request's tokens when it drafts for it: steps without drafts are not its
concern. How far each block holds its keys and values is kept by block, so that a prefix hit serves
both models. Where it has windows it follows step by step, as blocks go that a window has left.
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
from vllm_lite.worker.drafting.interface import DraftRows, StepDrafter
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s, Int64s

# Input ids [T] and positions [T] to hidden states [T, N], inside `attention_metadata(...)`.
Forward = Callable[[Tensor, Tensor], Tensor]


def most_draft_tokens(config: VllmConfig) -> int:
    """Tokens that the draft model computes at a time: a step's, and what one request is behind."""
    return config.scheduler.max_num_batched_tokens + config.cache.block_size


class DraftModel(StepDrafter):
    """Guesses what the draft model finds likeliest, for all requests of a step at once."""

    def __init__(
        self,
        config: VllmConfig,
        model: CausalLM,
        forward: Forward,
        inputs: HostInputs,
        group: int,
    ) -> None:
        """`config` is the draft model's own, `forward` its pass over any rows.

        `group`: of the block tables, one that has layers of it.
        """
        self._model, self._forward, self._inputs = model, forward, inputs
        self._states: RequestStates = inputs.states
        self._vocab_size = config.facts.vocab_size
        self._max_len = config.model.max_model_len
        self._block_size = config.cache.block_size
        self._most_tokens = most_draft_tokens(config)
        self._group = group
        layers = model.kv_cache_spec().layers
        self.follows = any(layer.sliding_window is not None for layer in layers)
        # Of each block's tokens, how many of the first have keys and values of this model. Nothing
        # is wanted of the null block.
        self._filled = np.array([self._block_size], np.int64)
        inputs.states.tables.on_new_blocks = self._begin_blocks

    @torch.inference_mode()
    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        slots, ends = rows.slots, np.minimum(rows.ends, self._max_len)
        most = np.clip(self._max_len - rows.ends, 0, rows.most)
        drafts = np.zeros((len(slots), int(most.max(initial=0))), np.int32)
        if not (self.follows or drafts.shape[1]):
            return list(drafts)
        blocks = self._states.tables.gather(slots, int(ends.max()))[self._group]
        done, is_due = self._num_done(blocks, ends), most > 0
        if self.follows:
            is_due |= ends // self._block_size > done // self._block_size
        else:
            # Who has more to compute than a step may take goes on in the next one.
            lacking = np.where(is_due, ends - done, 0)
            room = np.clip(self._most_tokens - lacking.cumsum() + lacking, 0, lacking)
            most[room < lacking] = 0
            ends, is_due = done + room, room > 0
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
        due = is_due.nonzero()[0]
        held = self._wanted(ends[due], blocks.shape[1])
        self._filled[blocks[due]] = np.maximum(self._filled[blocks[due]], held)
        return [self._known(ids[:count]) for ids, count in zip(drafts, most.tolist(), strict=True)]

    def _begin_blocks(self, block_ids: list[list[int]]) -> None:
        """Forget what blocks held that begin anew, a list for each group."""
        ids = block_ids[self._group]
        missing = max(ids, default=0) + 1 - len(self._filled)
        if missing > 0:
            self._filled = np.append(self._filled, np.zeros(missing, np.int64))
        self._filled[list(filter(None, ids))] = 0

    def _wanted(self, ends: Int64s, num_blocks: int) -> Int64s:
        """Tokens before the positions `ends` [R] that each block of a request holds, [R, M]."""
        size = self._block_size
        wanted: Int64s = np.clip(ends[:, None] - size * np.arange(num_blocks), 0, size)
        return wanted

    def _num_done(self, blocks: Int32s, ends: Int64s) -> Int64s:
        """Tokens of each request before the first one to compute, of `ends` [R] with `blocks`.

        The last is always computed, for its hidden state.
        """
        filled = self._filled[blocks]
        lacks = filled < self._wanted(ends, blocks.shape[1])
        first = lacks.argmax(1)
        done = first * self._block_size + filled[np.arange(len(ends)), first]
        found: Int64s = np.minimum(np.where(lacks.any(1), done, ends), ends - 1)
        return found

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
