"""Log-probabilities for clients: each position's token, its rank, the top candidates.

They stay on the device until a step's answer is taken. Lists are built once for a batch, not once
for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.transfer import to_device

ALL_TOKENS = -1
# The number of top tokens, or the ids of tokens.
Candidates = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class UnreadLogprobs:
    """Log-probabilities of M positions, as tensors on their device."""

    # Ids [M, 1 + K] int64, values [M, 1 + K] float32, ranks [M] int64; then the values of the ids
    # that a position asked for, for each that did.
    tensors: tuple[Tensor, ...] = ()
    candidates: Sequence[Candidates] = ()
    # How many of the K top tokens each position reports.
    counts: Sequence[int] = ()

    def read(self, arrays: Sequence[npt.NDArray[Any]]) -> list[TokenLogprobs]:
        """An entry for each position; `arrays` are copies of the tensors on the host."""
        entries = zip(*(array.tolist() for array in arrays[:3]), self.counts, strict=True)
        found = [
            TokenLogprobs(entry_ids[: count + 1], entry_values[: count + 1], rank)
            for entry_ids, entry_values, rank, count in entries
        ]
        asked = iter(arrays[3:])
        for entry, wanted in zip(found, self.candidates, strict=True):
            if not isinstance(wanted, int):
                entry.token_ids += wanted
                entry.logprobs += next(asked).tolist()
        return found


def gather_logprobs(
    logits: Tensor,
    rows: Sequence[int],
    index: Tensor,
    token_ids: Tensor,
    candidates: Sequence[Candidates],
    *,
    is_normalized: bool = True,
) -> UnreadLogprobs:
    """Log-probabilities of M positions, each of a row of `logits` [R, V] float32.

    `rows` [M] are theirs and `index` [M] the same on the device, `token_ids` [M] the sampled or
    prompt tokens, `candidates` [M] what to add: so many top ones (-1: all), or these ids. Values
    are log-probabilities if `is_normalized`, else logits. A rank is the number of tokens that are
    at least as likely, as in vLLM. Does not wait for the device.
    """
    counts = [_count(wanted, logits.shape[1]) for wanted in candidates]
    most = max(counts, default=0)
    values, ids, ranks = ops().token_logprobs(logits, index, token_ids, most, is_normalized)
    tensors = [ids, values, ranks]
    for row, wanted in zip(rows, candidates, strict=True):
        if not isinstance(wanted, int):
            shown = logits[row].log_softmax(-1) if is_normalized else logits[row]
            tensors.append(shown[to_device(np.array(wanted, np.int64), logits.device)])
    return UnreadLogprobs(tuple(tensors), candidates, counts)


def _count(wanted: Candidates, size: int) -> int:
    """The number of top tokens to add."""
    if not isinstance(wanted, int):
        return 0
    return size if wanted == ALL_TOKENS else min(wanted, size)
