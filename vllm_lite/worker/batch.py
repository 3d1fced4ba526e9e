"""One step's requests as arrays, and the model's inputs, built on the host.

Array operations do the work; the cost for each request is a few list entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.kernels.metadata import AttentionMetadata, StateIndices, attention_metadata
from vllm_lite.kernels.transfer import to_device
from vllm_lite.sample.states import SamplingBatch
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s, Int64s, StepPlan


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of the model for T tokens."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata


@dataclass(frozen=True, slots=True)
class StepRows:
    """R requests of a step, on the device; all [R] int64."""

    slots: Tensor
    starts: Tensor  # position of each request's first token in the step
    counts: Tensor
    # [R] and [T] int64, where there are any.
    states: StateIndices | None = None

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All but the counts."""
        return self.slots, self.starts, *(self.states or ())


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned step, and what of it is on the model's device."""

    plan: StepPlan
    # Index of the token that each row's token follows, [S]; None: they are 0..T-1.
    last_tokens: Tensor | None
    # For inputs built on the device: the requests, and the slots of sampled tokens.
    rows: StepRows | None = None
    targets: tuple[Tensor, Tensor] | None = None  # slots and positions, each a row that samples
    # How those rows sample; None where none does.
    sampling: SamplingBatch | None = None


class StepInputs(Protocol):
    """Builds a step's inputs from tables that it keeps."""

    states: RequestStates

    @property
    def runs_ahead(self) -> bool:
        """Whether a step reads the previous step's sampled ids on the device."""

    def set_tokens(self, slot: int, start: int, token_ids: Int32s) -> None:
        """Set the tokens of `slot` from the position `start` on."""

    def begin(self, plan: StepPlan) -> Batch:
        """Prepare a step."""

    def model_inputs(self, batch: Batch) -> ModelInputs:
        """The model's inputs for a batch."""

    def append(self, batch: Batch, token_ids: Tensor) -> None:
        """Store the sampled ids of `batch`, [S] int64, for later steps."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Results of a step's T tokens, which live until the next step."""

    hidden: Tensor  # [T, N]
    # Of a graph that samples: logits [T, V] float32, and the tokens of rows that ask for no more
    # than a draw, and the largest logits, both [T]. These tokens are appended.
    logits: Tensor | None = None
    sampled: tuple[Tensor, Tensor] | None = None


Forward = Callable[[Batch], Computed]


def eager(inputs: StepInputs, forward: Callable[[Tensor, Tensor], Tensor]) -> Forward:
    """A model's forward pass, or a recording of it, over the inputs of any step."""

    def run(batch: Batch) -> Computed:
        made = inputs.model_inputs(batch)
        with attention_metadata(made.attention):
            return Computed(forward(made.input_ids, made.positions))

    return run


class HostInputs:
    """Builds a step's inputs from the host's tables, which have every id."""

    runs_ahead = False

    def __init__(self, states: RequestStates, device: torch.device) -> None:
        self.states = states
        self._device = device

    def set_tokens(self, slot: int, start: int, token_ids: Int32s) -> None:
        """Do nothing: the states' table is read itself."""

    def begin(self, plan: StepPlan) -> Batch:
        """Prepare a step."""
        needs_places = len(plan.sampling) > 0 and not plan.samples_all
        return Batch(plan, self._tensor(plan.last_tokens) if needs_places else None)

    def model_inputs(self, batch: Batch) -> ModelInputs:
        """The model's inputs for a batch."""
        plan = batch.plan
        return self.inputs_of(plan.slots, plan.starts, plan.counts, self._states(plan))

    def inputs_of(
        self,
        slots: Int64s,
        starts: Int64s,
        counts: Int64s,
        state_indices: StateIndices | None = None,
    ) -> ModelInputs:
        """A model's inputs for so many tokens of each request from the positions `starts` on."""
        states = self.states
        num_requests, ends = len(slots), starts + counts
        query_start_loc = np.zeros(num_requests + 1, np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        num_tokens = int(query_start_loc[-1])
        if num_tokens == num_requests:
            token_slots, positions = slots, starts
        else:
            token_slots = np.repeat(slots, counts)
            # Token t of the batch is token t - query_start_loc[r] of its request r.
            positions = np.arange(num_tokens) + np.repeat(starts - query_start_loc[:-1], counts)
        input_ids = states.tokens.token_ids[token_slots, positions].astype(np.int64)
        max_seq_len = int(ends.max())
        tables, tensor = states.tables, self._tensor
        return ModelInputs(
            input_ids=tensor(input_ids),
            positions=tensor(positions),
            attention=AttentionMetadata(
                query_start_loc=tensor(query_start_loc),
                seq_lens=tensor(ends.astype(np.int32)),
                block_tables=tuple(map(tensor, tables.gather(slots, max_seq_len))),
                slot_mappings=tuple(map(tensor, tables.slot_mapping(token_slots, positions))),
                num_tokens=num_tokens,
                num_requests=num_requests,
                max_query_len=int(counts.max()),
                max_seq_len=max_seq_len,
                states=state_indices,
            ),
        )

    def append(self, batch: Batch, token_ids: Tensor) -> None:
        """Do nothing: the host reads the ids before the next step."""

    def _states(self, plan: StepPlan) -> StateIndices | None:
        if plan.state_in is None or plan.state_out is None:
            return None
        return StateIndices(self._tensor(plan.state_in), self._tensor(plan.state_out))

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return to_device(array, self._device)
