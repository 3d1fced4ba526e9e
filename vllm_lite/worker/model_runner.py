"""Runs one step: keeps request state, builds the batch, runs the model, samples.

Knows requests and tensors, not how memory is planned. Logits exist only for the positions
that sample or report; a row whose logits are not sound fails its own request and no other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.attention.metadata import attention_metadata
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.pending import DoneOutput, PendingOutput
from vllm_lite.core.step import ModelRunnerOutput, SchedulerOutput, TokenMasks
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.sample.sampler import Choice, Sampler, SamplerOutput
from vllm_lite.sample.states import SamplingStates
from vllm_lite.sample.token_mask import TokenMask
from vllm_lite.worker.batch import Batch, build_batch
from vllm_lite.worker.block_table import BlockTable
from vllm_lite.worker.prompt_logprobs import PromptLogprobs
from vllm_lite.worker.recorded_forward import recorded_forward
from vllm_lite.worker.request_states import RequestStates

UNSOUND_LOGITS = (
    "the model gave this request no usable logits: they are not finite, or every token is banned"
)


def report_failed(
    output: ModelRunnerOutput, request_ids: list[str], failed: list[int], stuck: list[int]
) -> None:
    """Enter the rows that sampled nothing in `output`; `request_ids` are those of all rows."""
    for row in failed:
        request_id = request_ids[row]
        del output.sampled_token_ids[request_id]
        output.logprobs.pop(request_id, None)
        output.errors[request_id] = UNSOUND_LOGITS
    output.stuck += [request_ids[row] for row in stuck]


class ModelRunner:
    """Executes steps on one device."""

    def __init__(
        self, config: VllmConfig, plan: KVCachePlan, model: CausalLM, device: torch.device
    ) -> None:
        num_slots, max_len = config.scheduler.max_num_seqs, config.model.max_model_len
        max_blocks = -(-(max_len + 1) // plan.block_size)
        tables = [
            BlockTable(num_slots, max_blocks, plan.block_size, group.sliding_window)
            for group in plan.groups
        ]
        self._device = device
        self._model = model
        # Layer by layer, or as one call: the same operations on the same numbers.
        max_tokens = config.scheduler.max_num_batched_tokens
        is_eager = config.model.enforce_eager
        self._forward = (
            model.forward if is_eager else recorded_forward(model, max_tokens, len(tables))
        )
        vocab_size = config.facts.vocab_size
        self._requests = RequestStates(num_slots, max_len, tables)
        tokens = self._requests.tokens
        self._sampling = SamplingStates(tokens, vocab_size, config.model.seed, device)
        self._sampler = Sampler(tokens, config.model.logprobs_mode)
        self._prompt_logprobs = PromptLogprobs(model, vocab_size)

    def submit(self, step: SchedulerOutput) -> PendingOutput:
        """Compute one step and sample where a request's last known token is in it."""
        return DoneOutput(self._execute(step))

    @torch.inference_mode()
    def _execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self._update_requests(step)
        if not step.num_scheduled_tokens:
            return ModelRunnerOutput({})
        batch = build_batch(self._requests, step.num_scheduled_tokens, self._device)
        with attention_metadata(batch.attention):
            hidden = self._forward(batch.input_ids, batch.positions)
        output = ModelRunnerOutput({})
        if len(batch.sampling_rows):
            self._sample(hidden, batch, step.token_masks, output)
        if self._requests.prompt_logprobs:
            output.prompt_logprobs = self._prompt_logprobs.collect(
                hidden,
                self._requests,
                batch.request_ids,
                batch.slots,
                batch.starts,
                batch.num_scheduled,
            )
        return output

    def _update_requests(self, step: SchedulerOutput) -> None:
        for request_id in step.dropped_request_ids:
            slot = self._requests.remove(request_id)
            if slot is not None:
                self._sampling.remove(slot)
        for request in step.new_requests:
            slot = self._requests.add(request)
            self._sampling.add(slot, request.sampling_params, request.eos_token_ids)
        if step.cached_requests:
            self._requests.update(step.cached_requests)

    def _sample(
        self, hidden: Tensor, batch: Batch, masks: TokenMasks | None, output: ModelRunnerOutput
    ) -> None:
        if batch.logits_indices is not None:
            hidden = hidden[batch.logits_indices]
        slots = batch.sampling_slots
        sampling = self._sampling.batch(slots)
        if masks is None and sampling.is_greedy_alone:
            sampled = Choice(*self._model.greedy_tokens(hidden), {}).read()
        else:
            mask = None if masks is None else self._token_mask(batch, masks)
            logits = self._model.compute_logits(hidden)
            sampled = self._sampler.sample(logits, sampling, mask)
        tokens = self._requests.tokens
        tokens.token_ids[slots, tokens.num_tokens[slots]] = sampled.token_ids
        tokens.num_tokens[slots] += 1
        self._report(batch, sampled, output)

    def _token_mask(self, batch: Batch, masks: TokenMasks) -> TokenMask:
        row_of = {request_id: row for row, request_id in enumerate(self._sampling_ids(batch))}
        rows = [row_of[request_id] for request_id in masks.request_ids]
        return TokenMask(rows, masks.bits, self._device)

    def _report(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        request_ids = self._sampling_ids(batch)
        output.sampled_token_ids = dict(zip(request_ids, sampled.token_ids, strict=True))
        for row, logprobs in sampled.logprobs.items():
            output.logprobs[request_ids[row]] = logprobs
        report_failed(output, request_ids, sampled.failed_rows, sampled.stuck_rows)

    @staticmethod
    def _sampling_ids(batch: Batch) -> list[str]:
        """The requests of the rows that sample, in their order."""
        if len(batch.sampling_rows) == len(batch.request_ids):
            return batch.request_ids
        return [batch.request_ids[row] for row in batch.sampling_rows.tolist()]
