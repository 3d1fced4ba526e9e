"""A sampler as the definitions read: one row at a time, in float64, with whole sorts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vllm_lite.sampling_params import SamplingParams

Row = npt.NDArray[np.float64]


def processed_logits(
    logits: Row, params: SamplingParams, prompt: list[int], output: list[int], eos: list[int]
) -> Row:
    """Logits after all that applies to greedy rows too."""
    row = logits.astype(np.float64).copy()
    if params.allowed_token_ids is not None:
        banned = np.ones(len(row), bool)
        banned[params.allowed_token_ids] = False
        row[banned] = -np.inf
    for word in params.bad_words_token_ids or []:
        prefix = word[:-1]
        if not prefix or output[-len(prefix) :] == prefix:
            row[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        row[[*eos, *(params.stop_token_ids or [])]] = -np.inf
    for token_id, bias in (params.logit_bias or {}).items():
        row[token_id] += bias
    for token_id in {*prompt, *output}:
        value = row[token_id]
        penalty = params.repetition_penalty
        row[token_id] = value / penalty if value > 0 else value * penalty
    for token_id in set(output):
        row[token_id] -= params.frequency_penalty * output.count(token_id)
        row[token_id] -= params.presence_penalty
    return row


def probabilities(row: Row, params: SamplingParams) -> Row:
    """The distribution that a non-greedy row draws from; `row` has no ties."""
    chances = _softmax(row / params.temperature)
    chances[chances < params.min_p * chances.max()] = 0
    order = np.argsort(-chances)
    if params.top_k > 0:
        chances[order[params.top_k :]] = 0
    chances /= chances.sum()
    if params.top_p < 1:  # 1 is off: a sum that rounds to 1 early cuts nothing
        before = np.cumsum(chances[order]) - chances[order]
        chances[order[(before >= params.top_p) & (np.arange(len(row)) > 0)]] = 0
    return chances / chances.sum()


def _softmax(row: Row) -> Row:
    weights = np.exp(row - row.max())
    result: Row = weights / weights.sum()
    return result
