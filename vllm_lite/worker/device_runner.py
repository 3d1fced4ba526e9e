"""Runs steps on a device that works beside the host: a step is given out, its answer read later.

The ids that a step samples go from the sampler into the device's own table, where the next step
finds them; the host reads them when somebody asks. It waits before that only for what it must
know itself: the tokens of a request with penalties or banned words, and log-probabilities.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vllm_lite.attention.metadata import attention_metadata
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.pending import DoneOutput, PendingOutput
from vllm_lite.core.step import ModelRunnerOutput, SchedulerOutput, TokenMasks
from vllm_lite.kernels.transfer import Arriving
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.sample.sampler import Choice, Sampler, rows_without_token
from vllm_lite.sample.states import SamplingStates
from vllm_lite.sample.token_mask import TokenMask
from vllm_lite.worker.batch import Int64s
from vllm_lite.worker.decode_graphs import DecodeGraphs
from vllm_lite.worker.device import Device
from vllm_lite.worker.device_inputs import (
    DeviceInputs,
    MirroredBlockTable,
    ModelInputs,
    StepRows,
)
from vllm_lite.worker.model_runner import report_failed
from vllm_lite.worker.prompt_logprobs import PromptLogprobs
from vllm_lite.worker.request_states import RequestStates


@dataclass(frozen=True, slots=True)
class _Plan:
    """One step on the host."""

    request_ids: list[str]  # [R]
    slots: Int64s  # [R]
    starts: Int64s  # [R]
    counts: Int64s  # [R]
    sampling: Int64s  # rows that sample, [S]

    @property
    def is_decode(self) -> bool:
        """Whether every request computes one token and samples the next."""
        return len(self.sampling) == len(self.slots) == int(self.counts.sum())


class DeviceRunner:
    """Executes steps on one device."""

    def __init__(
        self,
        config: VllmConfig,
        plan: KVCachePlan,
        model: CausalLM,
        device: Device,
        graph_sizes: tuple[int, ...] = (),
    ) -> None:
        """`graph_sizes`: batch sizes of decode steps to capture, ascending; others run eagerly."""
        place = device.torch_device
        num_slots, max_len = config.scheduler.max_num_seqs, config.model.max_model_len
        max_blocks = -(-(max_len + 1) // plan.block_size)
        tables = [
            MirroredBlockTable(num_slots, max_blocks, plan.block_size, group.sliding_window)
            for group in plan.groups
        ]
        self._model = model
        self._max_len = max_len
        self._device = place
        self._requests = RequestStates(num_slots, max_len, tables)
        self._inputs = DeviceInputs(tables, num_slots, max_len + 1, place)
        tokens = self._requests.tokens
        self._sampling = SamplingStates(tokens, config.facts.vocab_size, config.model.seed, place)
        self._sampler = Sampler(tokens, config.model.logprobs_mode)
        self._prompt_logprobs = PromptLogprobs(model, config.facts.vocab_size)
        maker = device.make_graph_maker()
        self._graphs = DecodeGraphs(
            self._decode, graph_sizes, self._inputs.padding_slot, maker, place
        )
        # Which request a slot is given to, counted: an answer may come after its request left.
        self._tenancies = np.zeros(num_slots, np.int64)
        self._unread: deque[_DeviceOutput] = deque()

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batch sizes of decode steps that have graphs, ascending."""
        return self._graphs.sizes

    @torch.inference_mode()
    def capture_graph(self, size: int) -> None:
        """Capture one of `graph_sizes` now; else it is captured when it is first met."""
        self._graphs.capture(size)

    @torch.inference_mode()
    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Give out one step; it samples where a request's last known token is in it."""
        self._update_requests(step)
        if not step.num_scheduled_tokens:
            return DoneOutput(ModelRunnerOutput({}))
        plan = self._plan(step.num_scheduled_tokens)
        tokens = self._requests.tokens
        ends = plan.starts + plan.counts
        sampling_slots, next_positions = plan.slots[plan.sampling], ends[plan.sampling]
        # Columns of the step, then those of the rows that sample.
        last = plan.counts.cumsum()[plan.sampling] - 1
        slots, starts, counts, last_tokens, to_slots, to_positions = self._inputs.begin_step(
            plan.slots, plan.starts, plan.counts, last, sampling_slots, next_positions
        )
        rows = StepRows(slots, starts, counts)
        output = ModelRunnerOutput({})
        wants_hidden = bool(self._requests.prompt_logprobs)
        if plan.is_decode and not wants_hidden and len(plan.slots) <= self._graphs.max_rows:
            chosen = self._graphs.run(rows)
        else:
            hidden = self._forward(self._model_inputs(plan, rows))
            chosen = hidden[last_tokens]
            if wants_hidden:
                output.prompt_logprobs = self._prompt_logprobs.collect(
                    hidden, self._requests, plan.request_ids, plan.slots, plan.starts, plan.counts
                )
        choice: Choice | None = None
        if len(plan.sampling):
            logits = self._model.compute_logits(chosen)
            choice = self._choose(logits, plan, step.token_masks)
            self._inputs.append_tokens(to_slots, to_positions, choice.token_ids)
            tokens.num_tokens[sampling_slots] += 1
        pending = _DeviceOutput(self, plan, next_positions, choice, output)
        self._unread.append(pending)
        return pending

    def _update_requests(self, step: SchedulerOutput) -> None:
        for request_id in step.dropped_request_ids:
            slot = self._requests.remove(request_id)
            if slot is not None:
                self._sampling.remove(slot)
        for request in step.new_requests:
            slot = self._requests.add(request)
            self._tenancies[slot] += 1
            tokens = self._requests.tokens
            self._inputs.set_tokens(slot, tokens.token_ids[slot, : tokens.num_tokens[slot]])
            self._sampling.add(slot, request.sampling_params, request.eos_token_ids)
        if step.cached_requests:
            self._requests.update(step.cached_requests)

    def _plan(self, num_scheduled_tokens: dict[str, int]) -> _Plan:
        request_ids = list(num_scheduled_tokens)
        slots = np.array(self._requests.slots(request_ids), np.int64)
        counts = np.fromiter(num_scheduled_tokens.values(), np.int64, len(slots))
        starts = self._requests.num_computed_tokens[slots]
        is_last = starts + counts == self._requests.tokens.num_tokens[slots]
        return _Plan(request_ids, slots, starts, counts, is_last.nonzero()[0])

    def _model_inputs(self, plan: _Plan, rows: StepRows) -> ModelInputs:
        max_seq_len = int((plan.starts + plan.counts).max())
        return self._inputs.mixed(rows, int(plan.counts.sum()), int(plan.counts.max()), max_seq_len)

    def _forward(self, inputs: ModelInputs) -> Tensor:
        with attention_metadata(inputs.attention):
            return self._model.forward(inputs.input_ids, inputs.positions)

    def _decode(self, rows: StepRows) -> Tensor:
        """What a graph holds: from rows to hidden states, for any context up to the longest."""
        return self._forward(self._inputs.decode(rows, self._max_len))

    def _choose(self, logits: Tensor, plan: _Plan, masks: TokenMasks | None) -> Choice:
        batch = self._sampling.batch(plan.slots[plan.sampling])
        if batch.processors:
            self._read_all()
        mask = None
        if masks is not None:
            row_of = {plan.request_ids[row]: i for i, row in enumerate(plan.sampling.tolist())}
            rows = [row_of[request_id] for request_id in masks.request_ids]
            mask = TokenMask(rows, masks.bits, self._device)
        return self._sampler.choose(logits, batch, mask)

    def _read_all(self) -> None:
        """Make the host's table as far as the device's."""
        for pending in tuple(self._unread):
            pending.get()

    def read(self, plan: _Plan, positions: Int64s, host_ids: Int64s, tenancies: Int64s) -> None:
        """Enter what a step sampled in the host's table, where the slots are still theirs."""
        slots = plan.slots[plan.sampling]
        is_theirs = self._tenancies[slots] == tenancies
        tokens = self._requests.tokens
        tokens.token_ids[slots[is_theirs], positions[is_theirs]] = host_ids[is_theirs]

    def tenancies(self, plan: _Plan) -> Int64s:
        """Whose the slots are that sample in a step."""
        return self._tenancies[plan.slots[plan.sampling]]

    def forget(self, pending: _DeviceOutput) -> None:
        """Take an answer that was read off the list."""
        self._unread.remove(pending)


class _DeviceOutput:
    """The answer to one step: its ids are on their way to the host."""

    def __init__(
        self,
        runner: DeviceRunner,
        plan: _Plan,
        positions: Int64s,
        choice: Choice | None,
        output: ModelRunnerOutput,
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._positions = positions
        self._output = output
        self._is_read = False
        self._choice = choice
        if choice is not None:
            self._tenancies = runner.tenancies(plan)
            # Ids and largest logits, as their bits, go over in one copy.
            bits = choice.largest.view(torch.int32).long()
            self._arriving = Arriving(torch.stack([choice.token_ids, bits]))

    def get(self) -> ModelRunnerOutput:
        """Wait for the ids; the answer, which is made once."""
        if not self._is_read:
            self._is_read = True
            self._runner.forget(self)
            if self._choice is not None:
                self._fill(self._choice)
        return self._output

    def _fill(self, choice: Choice) -> None:
        host_ids, bits = self._arriving.wait()
        plan, output = self._plan, self._output
        self._runner.read(plan, self._positions, host_ids, self._tenancies)
        request_ids = [plan.request_ids[row] for row in plan.sampling.tolist()]
        output.sampled_token_ids = dict(zip(request_ids, host_ids.tolist(), strict=True))
        for row, logprobs in choice.logprobs.items():
            output.logprobs[request_ids[row]] = logprobs
        largest = bits.astype(np.int32).view(np.float32)
        report_failed(output, request_ids, *rows_without_token(largest))
