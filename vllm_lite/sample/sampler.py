"""Logits to tokens: processors, then the largest logit or a sample, then log-probabilities.

Order as in vLLM: allowed ids, bad words, min_tokens, bias, penalties, masks; greedy rows end there;
for the others temperature, min_p, top_k, top_p, the sample. A row's token depends on its row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.sampling import filter_weights, token_weights
from vllm_lite.kernels.transfer import to_device
from vllm_lite.sample.bias import Int64s
from vllm_lite.sample.logprobs import UnreadLogprobs, gather_logprobs
from vllm_lite.sample.states import RandomRows, ReportingRows, SamplingBatch, TokenTable
from vllm_lite.sample.token_mask import TokenMask

RAW_LOGPROBS = "raw_logprobs"
RAW_LOGITS = "raw_logits"
PROCESSED_LOGPROBS = "processed_logprobs"
PROCESSED_LOGITS = "processed_logits"
LOGPROBS_MODES = (RAW_LOGPROBS, RAW_LOGITS, PROCESSED_LOGPROBS, PROCESSED_LOGITS)
_NOT_REPORTED = UnreadLogprobs()


@dataclass(frozen=True, slots=True)
class Choice:
    """The sampled tokens of R rows, on the device."""

    token_ids: Tensor  # [R] int64
    # [R] float32, the largest logits: not finite where they admit no token.
    largest: Tensor
    # Rows that asked for log-probabilities, and theirs.
    logprob_rows: Sequence[int] = ()
    logprobs: UnreadLogprobs = _NOT_REPORTED


def rows_without_token(largest: npt.NDArray[np.float32]) -> tuple[list[int], list[int]]:
    """The rows that admit no token, and those among them that bans leave without one (all -inf).

    By the largest logit of each row [R].
    """
    # By numpy: a torch operation costs 40 us here, with cold caches after a step.
    is_sound = np.isfinite(largest)
    if is_sound.all():
        return [], []
    return (~is_sound).nonzero()[0].tolist(), np.isneginf(largest).nonzero()[0].tolist()


def draw(logits: Tensor, random: RandomRows, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens for `positions` [R] int64 and the largest logits, as `sample_tokens`."""
    return ops().sample_tokens(
        logits,
        random.inverse_temperature,
        random.min_p,
        random.top_k,
        random.top_p,
        ops().uniforms(random.keys, positions),
    )


class Sampler:
    """Samples batches over one vocabulary."""

    def __init__(self, table: TokenTable, logprobs_mode: str = RAW_LOGPROBS) -> None:
        if logprobs_mode not in LOGPROBS_MODES:
            raise ValueError(f"logprobs_mode {logprobs_mode!r} is not one of {LOGPROBS_MODES}")
        self._table = table
        self._is_raw = logprobs_mode in (RAW_LOGPROBS, RAW_LOGITS)
        self._is_normalized = logprobs_mode in (RAW_LOGPROBS, PROCESSED_LOGPROBS)

    def choose(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Int64s,
        mask: TokenMask | None = None,
    ) -> Choice:
        """One token for each row of `logits` [R, V] float32, which processors modify.

        `positions` [R] are the tokens' positions in their slots. `mask` is applied after every bias
        and penalty, so that a banned token stays banned. Does not wait for the device.
        """
        reporting = batch.reporting
        raw: Tensor | None = None
        if reporting and self._is_raw and (batch.processors or mask is not None):
            raw = logits[reporting.index]
        if batch.processors:
            outputs = self._table.outputs(batch.slots, positions)
            for processor in batch.processors:
                processor.apply(logits, outputs)
        if mask is not None:
            mask.apply(logits)
        if batch.random is None:
            tokens, largest = ops().greedy_tokens(logits)
        else:
            places = to_device(positions, logits.device)
            tokens, largest = draw(logits, batch.random, places)
        if reporting is None:
            return Choice(tokens, largest)
        if not self._is_raw:
            raw = _processed(logits, batch.random, reporting.index)
        logprobs = self._report(logits, raw, tokens, reporting)
        return Choice(tokens, largest, reporting.rows, logprobs)

    def _report(
        self, logits: Tensor, copies: Tensor | None, tokens: Tensor, reporting: ReportingRows
    ) -> UnreadLogprobs:
        """Log-probabilities of the rows that asked, from `copies` of them where there are some."""
        rows: Sequence[int] = reporting.rows
        index, chosen = reporting.index, tokens[reporting.index]
        if copies is not None:
            logits, rows = copies, range(len(rows))
            index = torch.arange(len(rows), device=logits.device)
        candidates, is_normalized = reporting.candidates, self._is_normalized
        return gather_logprobs(logits, rows, index, chosen, candidates, is_normalized=is_normalized)


def _processed(logits: Tensor, random: RandomRows | None, rows: Tensor) -> Tensor:
    """Logits of `rows` [M] as they were sampled from, [M, V]."""
    processed = logits[rows]
    if random is None:
        return processed
    is_drawn = random.inverse_temperature[rows] != 0
    inverse = random.inverse_temperature[rows].where(is_drawn, 1.0)
    # In double, a weight that underflows float32 is not taken for a filtered one.
    exponents = (processed - processed.amax(-1, keepdim=True)).double() * inverse[:, None]
    tails = exponents.exp().clamp_(min=torch.finfo(torch.float64).tiny)
    weights = token_weights(processed, inverse).double()
    weights = weights.where(weights > 0, tails)
    filter_weights(weights, random.min_p[rows], random.top_k[rows], random.top_p[rows])
    processed.mul_(inverse[:, None])
    return processed.masked_fill_((weights == 0) & is_drawn[:, None], float("-inf"))
