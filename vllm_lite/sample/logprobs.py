"""Log-probabilities as a client gets them: one position's token, its rank, the top candidates.

Knows rows and token ids only. Lists are built once for a batch, not once for a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.sample.blocks import largest

ALL_TOKENS = -1
# How many of the likeliest tokens, or which tokens.
Candidates = int | Sequence[int]


def gather_logprobs(
    logprobs: Tensor, token_ids: Tensor, candidates: Sequence[Candidates]
) -> list[TokenLogprobs]:
    """Pick what R positions report.

    `logprobs` [R, V] float32 (or logits, where the mode says so), `token_ids` [R] the sampled
    or prompt tokens, `candidates` [R] what to add: so many top ones (-1: all), or these ids.
    A rank is the number of tokens that are at least as likely, as in vLLM.
    """
    size = logprobs.shape[1]
    counts = [_count(wanted, size) for wanted in candidates]
    chosen = logprobs.gather(1, token_ids[:, None])
    ranks = (logprobs >= chosen).sum(-1).tolist()
    most = max(counts, default=0)
    values, ids = chosen, token_ids[:, None]
    if most > 0:
        top_values, top_ids = largest(logprobs, most)
        values, ids = torch.cat([values, top_values], 1), torch.cat([ids, top_ids], 1)
    rows = zip(ids.tolist(), values.tolist(), ranks, counts, strict=True)
    found = [
        TokenLogprobs(row_ids[: count + 1], row_values[: count + 1], rank)
        for row_ids, row_values, rank, count in rows
    ]
    for row, wanted in enumerate(candidates):
        if not isinstance(wanted, int):
            found[row].token_ids += wanted
            found[row].logprobs += logprobs[row, list(wanted)].tolist()
    return found


def _count(wanted: Candidates, size: int) -> int:
    """How many of the likeliest tokens to add."""
    if not isinstance(wanted, int):
        return 0
    return size if wanted == ALL_TOKENS else min(wanted, size)
