"""Runs steps: updates request states, runs the model, samples, answers.

Logits are computed only for the positions that sample or report; a row with unsound logits fails
its own request alone. On a GPU a step is submitted and its answer read later: the next step reads
the ids on the device. The host waits earlier only for what it needs itself: the tokens of requests
with penalties or banned words of several tokens, and log-probabilities of prompts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.pending import DoneOutput, PendingOutput
from vllm_lite.core.step import (
    LateMasks,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenLogprobs,
    TokenMasks,
)
from vllm_lite.kernels.transfer import Arriving
from vllm_lite.models.interfaces import CausalLM, PoolingModel
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sample.sampler import Choice, Sampler, rows_without_token
from vllm_lite.sample.states import SamplingBatch, SamplingStates
from vllm_lite.sample.token_mask import TokenMask, masked_rows
from vllm_lite.spec_decode.acceptance import SyntheticAcceptance, make_acceptance
from vllm_lite.worker.batch import Batch, Computed, Forward, StepInputs
from vllm_lite.worker.drafting.ahead import draft_ahead
from vllm_lite.worker.drafting.interface import StepDrafter
from vllm_lite.worker.pooling import Pooler
from vllm_lite.worker.prompt_logprobs import PromptLogprobs
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int64s, StepPlan

UNSOUND_LOGITS = (
    "the model gave this request no usable logits: they are not finite, or every token is banned"
)


class ModelRunner:
    """Executes steps on one device."""

    def __init__(
        self,
        config: VllmConfig,
        model: CausalLM,
        inputs: StepInputs,
        forward: Forward,
        device: torch.device,
        drafter: StepDrafter | None = None,
    ) -> None:
        """`forward`: the model's forward pass over a batch of `inputs`."""
        vocab_size = config.facts.vocab_size
        self._device = device
        self._model = model
        self._inputs = inputs
        self._forward = forward
        self._requests = inputs.states
        tokens = self._requests.tokens
        self._sampling = SamplingStates(tokens, vocab_size, config.model.seed, device)
        self._sampler = Sampler(tokens, config.model.logprobs_mode)
        self._prompt_logprobs = PromptLogprobs(model, vocab_size)
        self._drafter = drafter
        pooling = config.facts.pooling
        self._pooler = None if pooling is None else Pooler(cast("PoolingModel", model), pooling)
        self._synthetic = make_acceptance(config.speculative)
        self._unread: deque[_Answer] = deque()

    @torch.inference_mode()
    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Run one step after those submitted before it.

        `masks` are called once the forward pass is launched: they may wait for earlier answers.
        """
        self._update_requests(step)
        output = ModelRunnerOutput({})
        if not step.num_scheduled_tokens:
            return DoneOutput(output)
        plan = self._plan(step)
        batch = self._inputs.begin(plan)
        if len(plan.sampling):
            batch = replace(batch, sampling=self._sampling.batch(plan.sampling_slots))
        computed = self._forward(batch)
        hidden = computed.hidden
        if self._requests.prompt_logprobs:
            output.prompt_logprobs = self._prompt_logprobs.collect(hidden, self._requests, plan)
        if self._pooler is not None:
            self._pooler.collect(hidden, self._requests, plan, output)
        answer: PendingOutput = DoneOutput(output)
        if batch.sampling is not None:
            token_masks = step.token_masks if masks is None else masks()
            choice = self._choose(computed, batch, batch.sampling, token_masks)
            answer = _Answer(plan, choice, output, self._requests, self._unread, self._synthetic)
        drafter, wanted = self._drafter, step.wanted_drafts
        if wanted or not self._inputs.runs_ahead or (drafter is not None and drafter.observes):
            answer.get()
        if drafter is not None and drafter.observes:
            drafter.observe(hidden, plan)
        if drafter is not None and wanted:
            output.drafts = draft_ahead(drafter, self._requests, plan, wanted)
        return answer

    def _update_requests(self, step: SchedulerOutput) -> None:
        if self._drafter is not None:
            for request_id in step.finished_request_ids:
                num_unread = sum(request_id in answer.plan.request_ids for answer in self._unread)
                self._drafter.remember(request_id, num_unread)
        for request_id in step.dropped_request_ids:
            slot = self._requests.remove(request_id)
            if slot is not None:
                self._sampling.remove(slot)
        for request in step.new_requests:
            slot = self._requests.add(request)
            num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
            self._inputs.set_tokens(slot, 0, self._requests.tokens.token_ids[slot, :num_tokens])
            if not isinstance(request.task, PoolingParams):
                self._sampling.add(slot, request.task, request.eos_token_ids)
        self._requests.append_blocks(step.new_block_ids)

    def _plan(self, step: SchedulerOutput) -> StepPlan:
        drafter, may_draft = self._drafter, max(step.num_verified.values()) > 1
        if not (may_draft or (drafter is not None and drafter.follows)):
            if any(answer.plan.has_drafts for answer in self._unread):
                self._read_all()
            return self._requests.plan(step)
        # Drafts depend on the tokens, and each request's progress on the drafts.
        self._read_all()
        plan = self._requests.plan(step, drafter)
        for row in (plan.verified > 1).nonzero()[0].tolist():
            slot, end = int(plan.slots[row]), int(plan.starts[row] + plan.counts[row])
            start = end - int(plan.verified[row]) + 1
            drafts = self._requests.tokens.token_ids[slot, start:end]
            self._inputs.set_tokens(slot, start, drafts)
        return plan

    def _read_all(self) -> None:
        """Read the sampled ids that only the device's table has."""
        for answer in tuple(self._unread):
            answer.get()

    def _choose(
        self, computed: Computed, batch: Batch, sampling: SamplingBatch, masks: TokenMasks | None
    ) -> Choice:
        """Sample and append a token for each row of the step that asks for one."""
        is_plain = masks is None and sampling.is_plain
        if is_plain and computed.sampled is not None:
            return Choice(*computed.sampled)
        hidden = computed.hidden
        if batch.last_tokens is not None:
            hidden = hidden[batch.last_tokens]
        if is_plain and sampling.random is None:
            choice = Choice(*self._model.greedy_tokens(hidden))
        else:
            logits = computed.logits
            if logits is None:
                logits = self._model.compute_logits(hidden)
            choice = self._sample(logits, sampling, batch.plan, masks)
        self._inputs.append(batch, choice.token_ids)
        return choice

    def _sample(
        self, logits: Tensor, batch: SamplingBatch, plan: StepPlan, masks: TokenMasks | None
    ) -> Choice:
        if batch.reads_outputs:
            self._read_all()
        mask = None
        if masks is not None:
            rows = masked_rows(plan.sampling_ids, masks.request_ids)
            mask = TokenMask(rows, masks.bits, self._device)
        return self._sampler.choose(logits, batch, plan.sampled_positions, mask)


class _Answer:
    """The answer to one step, whose ids and log-probabilities are being copied to the host."""

    def __init__(
        self,
        plan: StepPlan,
        choice: Choice,
        output: ModelRunnerOutput,
        states: RequestStates,
        unread: deque[_Answer],
        synthetic: SyntheticAcceptance | None = None,
    ) -> None:
        """Stays in `unread` until it is read; `synthetic` keeps drafts by chance."""
        self._synthetic = synthetic
        self.plan = plan
        self._choice = choice
        # By row, once they are read.
        self._logprobs: dict[int, TokenLogprobs] = {}
        self._output = output
        self._states = states
        self._tenancies = states.tenancies[plan.sampling_slots]
        self._unread = unread
        tensors = choice.token_ids, choice.largest, *choice.logprobs.tensors
        self._arriving: Arriving | None = Arriving(*tensors)
        unread.append(self)

    def get(self) -> ModelRunnerOutput:
        """Wait for the ids and return the answer, which is built once."""
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            self._unread.remove(self)
            self._enter(*arriving.wait())
        return self._output

    def _enter(
        self, token_ids: Int64s, largest: npt.NDArray[np.float32], *reported: npt.NDArray[Any]
    ) -> None:
        """Enter the ids in the output, and in the host's table where the slots are unchanged.

        `reported` are those of log-probabilities.
        """
        plan, output, states = self.plan, self._output, self._states
        slots, positions, table = plan.sampling_slots, plan.sampled_positions, states.tokens
        request_ids = plan.sampling_ids
        failed, stuck = rows_without_token(largest)
        found = self._choice.logprobs.read(reported)
        self._logprobs = dict(zip(self._choice.logprob_rows, found, strict=True))
        is_theirs = states.tenancies[slots] == self._tenancies
        if plan.has_drafts:
            drafts = table.token_ids[slots, positions]
            is_drafted = drafts == token_ids
            if self._synthetic is not None:
                is_drafted = self._synthetic.keep(plan.verified)
                token_ids = np.where(is_drafted, drafts, token_ids)
            firsts = self._accept(token_ids.tolist(), is_drafted.tolist(), set(failed), is_theirs)
            # A failed row behind an accepted draft is sampled again in the next step.
            failed, stuck = (sorted(firsts.intersection(rows)) for rows in (failed, stuck))
        else:
            sampled = ([token_id] for token_id in token_ids.tolist())
            output.sampled_token_ids = dict(zip(request_ids, sampled, strict=True))
            for row, logprobs in self._logprobs.items():
                output.logprobs[request_ids[row]] = [logprobs]
        table.token_ids[slots[is_theirs], positions[is_theirs]] = token_ids[is_theirs]
        for row in failed:
            request_id = request_ids[row]
            del output.sampled_token_ids[request_id]
            output.logprobs.pop(request_id, None)
            output.errors[request_id] = UNSOUND_LOGITS
        output.stuck += [request_ids[row] for row in stuck]

    def _accept(
        self,
        token_ids: list[int],
        is_drafted: list[bool],
        failed: set[int],
        is_theirs: npt.NDArray[np.bool_],
    ) -> set[int]:
        """Enter each request's tokens up to the first rejected draft; returns the first rows.

        `is_drafted`: whether a row's token is the draft of its position.
        """
        plan, output, states = self.plan, self._output, self._states
        ends = plan.verified.cumsum().tolist()
        firsts = set()
        for index, (count, end) in enumerate(zip(plan.verified.tolist(), ends, strict=True)):
            if not count:
                continue
            request_id, first = plan.request_ids[index], end - count
            row = first + 1
            while row < end and is_drafted[row - 1] and row not in failed:
                row += 1
            firsts.add(first)
            output.sampled_token_ids[request_id] = token_ids[first:row]
            if first in self._logprobs:
                output.logprobs[request_id] = [self._logprobs[i] for i in range(first, row)]
            if count > 1:
                output.num_draft_tokens[request_id] = count - 1
            if is_theirs[first]:
                states.num_computed_tokens[plan.slots[index]] += row - first - 1
        return firsts
