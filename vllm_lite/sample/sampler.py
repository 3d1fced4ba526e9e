"""Logits to tokens: processors, then the largest logit or a draw, then log-probabilities.

Knows rows and slots, not requests. Order as in vLLM: allowed ids, bad words, min_tokens, bias,
penalties, masks; greedy rows end there; for the others temperature, min_p, top_k, top_p, the draw.
A row's token depends on that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import threshold

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.sample.blocks import argmax, draw
from vllm_lite.sample.counter_rng import uniforms
from vllm_lite.sample.logprobs import gather_logprobs
from vllm_lite.sample.states import RandomRows, SamplingBatch, TokenTable
from vllm_lite.sample.token_mask import TokenMask

RAW_LOGPROBS = "raw_logprobs"
RAW_LOGITS = "raw_logits"
PROCESSED_LOGPROBS = "processed_logprobs"
PROCESSED_LOGITS = "processed_logits"
LOGPROBS_MODES = (RAW_LOGPROBS, RAW_LOGITS, PROCESSED_LOGPROBS, PROCESSED_LOGITS)

_LEAST_EXPONENT, _LEAST_WEIGHT = -87.0, 2e-38


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What R rows sampled."""

    token_ids: list[int]
    # Rows whose logits admit no token: not finite, or all of them banned.
    failed_rows: list[int]
    # row -> its log-probabilities, for the rows that asked.
    logprobs: dict[int, TokenLogprobs]


class Sampler:
    """Samples batches over one vocabulary."""

    def __init__(self, table: TokenTable, logprobs_mode: str = RAW_LOGPROBS) -> None:
        if logprobs_mode not in LOGPROBS_MODES:
            raise ValueError(f"logprobs_mode {logprobs_mode!r} is not one of {LOGPROBS_MODES}")
        self._table = table
        self._mode = logprobs_mode

    def sample(
        self, logits: Tensor, batch: SamplingBatch, mask: TokenMask | None = None
    ) -> SamplerOutput:
        """One token for each row of `logits` [R, V] float32, which is overwritten.

        `mask` comes after every bias and penalty: nothing brings a banned token back.
        """
        reported: Tensor | None = None
        if batch.logprob_rows and self._mode in (RAW_LOGPROBS, RAW_LOGITS):
            reported = logits[batch.logprob_rows]
            if self._mode == RAW_LOGPROBS:
                reported = reported.log_softmax(-1)
        if batch.processors:
            outputs = self._table.outputs(batch.slots)
            for processor in batch.processors:
                processor.apply(logits, outputs)
        if mask is not None:
            mask.apply(logits)
        tokens, scores = self._choose(logits, batch)
        if batch.logprob_rows and reported is None:
            reported = self._processed(logits, batch)
        is_bad = ~scores.isfinite()
        failed = is_bad.nonzero()[:, 0].tolist() if bool(is_bad.any()) else []
        logprobs: dict[int, TokenLogprobs] = {}
        if reported is not None:
            chosen = tokens[batch.logprob_rows]
            found = gather_logprobs(reported, chosen, batch.candidates)
            logprobs = dict(zip(batch.logprob_rows, found, strict=True))
        return SamplerOutput(tokens.tolist(), failed, logprobs)

    def _choose(self, logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
        """Tokens [R], and the largest logit of each row [R], finite iff the row is sound.

        The logits of random rows are overwritten where `_processed` does not need them.
        """
        if batch.random is None:
            tokens = argmax(logits)
            return tokens, logits.gather(1, tokens[:, None])[:, 0]
        random = batch.random
        if random.rows is None:
            weights = logits if not self._needs_processed(batch) else logits.clone()
            return self._draw(weights, random)
        tokens = argmax(logits)
        scores = logits.gather(1, tokens[:, None])[:, 0]
        tokens[random.rows] = self._draw(logits[random.rows], random)[0]
        return tokens, scores

    def _draw(self, logits: Tensor, random: RandomRows) -> tuple[Tensor, Tensor]:
        """Draw from `logits` [N, V], overwritten; the tokens and each row's largest logit, [N]."""
        weights, largest = _to_weights(logits, random)
        if random.filters is not None:
            random.filters.apply(weights)
        positions = self._table.num_tokens[random.slots]
        positions = positions - self._table.num_prompt_tokens[random.slots]
        chances = torch.from_numpy(uniforms(random.keys, positions)).to(weights.device)
        return draw(weights, chances), largest

    def _needs_processed(self, batch: SamplingBatch) -> bool:
        return bool(batch.logprob_rows) and self._mode in (PROCESSED_LOGPROBS, PROCESSED_LOGITS)

    def _processed(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Logits as the draw saw them, [len(logprob_rows), V], or their log-probabilities."""
        if batch.random is not None:
            random = batch.random
            rows = random.rows if random.rows is not None else torch.arange(len(logits))
            scaled = logits[rows]
            if random.inverse_temperature is not None:
                scaled = scaled * random.inverse_temperature
            if random.filters is not None:
                weights, _ = _to_weights(logits[rows], random)
                # A weight too small for float32 is unlikely, not filtered.
                weights.clamp_(min=torch.finfo(weights.dtype).tiny)
                random.filters.apply(weights)
                scaled = scaled.masked_fill(weights == 0, float("-inf"))
            logits[rows] = scaled
        processed = logits[batch.logprob_rows]
        return processed if self._mode == PROCESSED_LOGITS else processed.log_softmax(-1)


def _to_weights(logits: Tensor, random: RandomRows) -> tuple[Tensor, Tensor]:
    """`logits` [N, V] in place to exp((logit - largest) / temperature); and the largest, [N].

    A row that is not sound gets equal weights: its draw is discarded, but must not fail.
    """
    largest = logits.amax(-1, keepdim=True)
    logits.sub_(largest)
    if random.inverse_temperature is not None:
        logits.mul_(random.inverse_temperature)
    # exp is many times slower where its result is zero or subnormal: such tokens get zero here.
    logits.clamp_(min=_LEAST_EXPONENT).exp_()
    weights = threshold(logits, _LEAST_WEIGHT, 0.0, inplace=True)
    is_bad = ~largest[:, 0].isfinite()
    if bool(is_bad.any()):
        weights[is_bad] = 1.0
    return weights, largest[:, 0]
