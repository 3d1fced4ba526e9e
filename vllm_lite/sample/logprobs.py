"""Log-probabilities for clients: each position's token, its rank, the top candidates.

Lists are built once for a batch, not once for a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.kernels.dispatch import ops

ALL_TOKENS = -1
# The number of top tokens, or the ids of tokens.
Candidates = int | Sequence[int]


def gather_logprobs(
    logits: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    candidates: Sequence[Candidates],
    *,
    is_normalized: bool = True,
) -> list[TokenLogprobs]:
    """Log-probabilities of M positions, each of a row of `logits` [R, V] float32.

    `rows` [M] are theirs, `token_ids` [M] the sampled or prompt tokens, `candidates` [M] what to
    add: so many top ones (-1: all), or these ids. Values are log-probabilities if `is_normalized`,
    else logits. A rank is the number of tokens that are at least as likely, as in vLLM.
    """
    counts = [_count(wanted, logits.shape[1]) for wanted in candidates]
    most = max(counts, default=0)
    values, ids, ranks = ops().token_logprobs(logits, rows, token_ids, most, is_normalized)
    entries = zip(ids.tolist(), values.tolist(), ranks.tolist(), counts, strict=True)
    found = [
        TokenLogprobs(entry_ids[: count + 1], entry_values[: count + 1], rank)
        for entry_ids, entry_values, rank, count in entries
    ]
    for index, wanted in enumerate(candidates):
        if not isinstance(wanted, int):
            row = logits[rows[index]]
            shown = row.log_softmax(-1) if is_normalized else row
            found[index].token_ids += wanted
            found[index].logprobs += shown[list(wanted)].tolist()
    return found


def _count(wanted: Candidates, size: int) -> int:
    """The number of top tokens to add."""
    if not isinstance(wanted, int):
        return 0
    return size if wanted == ALL_TOKENS else min(wanted, size)
