"""The end of a graph, behind hidden states: logits, a token for each row, its entry in the table.

How rows are drawn lies in fixed memory, which is filled before a replay when the rows have changed.
Random numbers are those of each row's stream at its position, so that nothing else comes from the
host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_lite.models.interfaces import CausalLM
from vllm_lite.sample.sampler import draw
from vllm_lite.sample.states import RandomRows, SamplingBatch
from vllm_lite.worker.batch import StepRows
from vllm_lite.worker.device_inputs import DeviceInputs


class Sampled(NamedTuple):
    """Results of R rows, in a graph's memory."""

    logits: Tensor  # [R, V] float32
    token_ids: Tensor  # [R] int64
    largest: Tensor  # [R] float32, the largest logits


class GraphSampler:
    """Samples the rows of graphs that have up to `most_rows` of one token each.

    More rows are sampled behind their graph. The device then works longer than it takes to launch
    that, and logits of each size would take much memory: of all sizes up to 256 with a vocabulary
    of 152,000 tokens 2.6 GB, of those up to 32 53 MB.
    """

    most_rows = 32

    def __init__(self, model: CausalLM, inputs: DeviceInputs, device: torch.device) -> None:
        self._model, self._inputs = model, inputs
        floats = torch.zeros(3, self.most_rows, device=device).unbind()
        whole = torch.zeros(2, self.most_rows, dtype=torch.int64, device=device).unbind()
        self._kept = RandomRows(whole[0], floats[0], floats[1], whole[1], floats[2])
        self._last: RandomRows | None = None

    def prepare(self, batch: SamplingBatch | None) -> None:
        """Fill the memory for the next replay; rows that need more than a draw count as greedy."""
        random = None if batch is None or not batch.is_plain else batch.random
        if random is self._last:
            return
        self._last = random
        self._kept.inverse_temperature.zero_()
        if random is not None:
            for kept, given in zip(self._kept.columns, random.columns, strict=True):
                kept[: len(given)] = given

    def sample(self, rows: StepRows, hidden: Tensor) -> Sampled:
        """Sample behind `hidden` [R, N], each row's only token, and append; a graph can hold it."""
        positions = rows.starts + 1
        logits = self._model.compute_logits(hidden)
        tokens, largest = draw(logits, self._kept.first(len(hidden)), positions)
        self._inputs.append_at(rows.slots, positions, tokens)
        return Sampled(logits, tokens, largest)
