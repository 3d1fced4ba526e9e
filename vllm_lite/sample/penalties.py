"""Repetition, frequency and presence penalties, as vLLM defines them.

A request keeps its distinct ids and how often it generated each, updated from its token row. The
cost depends on the distinct tokens, not on the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.transfer import to_device

Int32s = npt.NDArray[np.int32]


class SeenTokens:
    """Distinct token ids of one request, with the number of times each was generated."""

    def __init__(self, prompt_token_ids: Int32s, vocab_size: int) -> None:
        ids = np.unique(prompt_token_ids).astype(np.int64)
        ids = ids[(ids >= 0) & (ids < vocab_size)]
        self.count = self._num_prompt_ids = len(ids)
        self._ids = np.zeros(max(64, 2 * len(ids)), np.int64)
        self._ids[: len(ids)] = ids
        self._times = np.zeros(len(self._ids), np.float32)
        self._index = {int(token_id): i for i, token_id in enumerate(ids)}
        self._outputs: list[int] = []

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Distinct ids, [count]."""
        return self._ids[: self.count]

    @property
    def times(self) -> npt.NDArray[np.float32]:
        """How often each id was generated, [count]; 0 for ids of the prompt alone."""
        return self._times[: self.count]

    def update(self, output_token_ids: Int32s) -> None:
        """Count the outputs since the last call; pass all of them."""
        for token_id in output_token_ids[len(self._outputs) :].tolist():
            index = self._index.setdefault(token_id, self.count)
            if index == self.count:
                self._append(token_id)
            self._times[index] += 1.0
            self._outputs.append(token_id)

    def rewind(self, num_outputs: int) -> None:
        """Forget all but the first outputs."""
        while len(self._outputs) > num_outputs:
            token_id = self._outputs.pop()
            index = self._index[token_id]
            self._times[index] -= 1.0
            if not self._times[index] and index >= self._num_prompt_ids:
                del self._index[token_id]
                self.count -= 1

    def _append(self, token_id: int) -> None:
        if self.count == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        self._ids[self.count] = token_id
        self.count += 1


@dataclass(frozen=True, slots=True)
class PenaltyRow:
    """One batch row's penalties."""

    row: int
    slot: int
    repetition: float
    frequency: float
    presence: float
    seen: SeenTokens


class Penalties:
    """The penalties of one batch."""

    reads_outputs = True

    def __init__(self, rows: list[PenaltyRow]) -> None:
        self._rows = rows
        # Each further row of a request follows one more draft.
        self._have_drafts = len({row.slot for row in rows}) < len(rows)
        self._index = np.array([row.row for row in rows], np.int64)
        self._factors = np.array(
            [(row.repetition, row.frequency, row.presence) for row in rows], np.float32
        )

    def apply(self, logits: Tensor, outputs: list[Int32s]) -> None:
        """Penalise `logits` [R, V] in place; `outputs` are the batch rows' generated ids."""
        seen = []
        for row in self._rows:
            row.seen.update(outputs[row.row])
            times = row.seen.times
            seen.append((row.seen.ids, times.copy() if self._have_drafts else times))
        if self._have_drafts:  # only the first row is certain
            for row in reversed(self._rows):
                row.seen.rewind(len(outputs[row.row]))
        starts = np.cumsum([0] + [len(ids) for ids, _ in seen])
        ids, times = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        columns = (self._index, starts, ids, times, self._factors)
        ops().penalize_tokens(logits, *(to_device(column, logits.device) for column in columns))
