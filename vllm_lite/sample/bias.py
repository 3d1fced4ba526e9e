"""Changes to single logits of single rows: allowed ids, bad words, min_tokens, logit_bias.

Each class serves one batch and touches only the (row, token) pairs that it names. None waits for
the device: a number that is written to indexed places would, a tensor of it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.kernels.transfer import to_device

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_BANNED = float("-inf")


@dataclass(frozen=True, slots=True)
class TokenBias:
    """The logit_bias of one request."""

    token_ids: Int64s
    values: npt.NDArray[np.float32]


def _pairs(
    rows: Sequence[int], ids: Sequence[Int64s], device: torch.device
) -> tuple[Tensor, Tensor]:
    """(row, id) index tensors over all ids of all rows."""
    lengths = [len(row_ids) for row_ids in ids]
    flat_rows = np.repeat(np.asarray(rows, np.int64), lengths)
    flat_ids = np.concatenate(ids) if ids else np.zeros(0, np.int64)
    return to_device(flat_rows, device), to_device(flat_ids, device)


class AllowedTokens:
    """Bans every token of a row but the ones it allows."""

    reads_outputs = False

    def __init__(self, rows: list[int], ids: list[Int64s], device: torch.device) -> None:
        self._rows = to_device(np.array(rows, np.int64), device)
        self._pairs = _pairs(rows, ids, device)

    def apply(self, logits: Tensor, outputs: list[Int32s]) -> None:
        """Ban in `logits` [R, V] in place."""
        kept = logits[self._pairs]
        logits.index_fill_(0, self._rows, _BANNED)
        logits[self._pairs] = kept


class BadWords:
    """Bans the last token of a word whose other tokens were just generated."""

    def __init__(self, rows: list[int], words: list[list[list[int]]], device: torch.device) -> None:
        single = [np.array([w[0] for w in row if len(w) == 1], np.int64) for row in words]
        self._single = _pairs(rows, single, device)
        self._banned = torch.full((), _BANNED, device=device)
        self._longer = [
            (row, word[:-1], word[-1])
            for row, row_words in zip(rows, words, strict=True)
            for word in row_words
            if len(word) > 1
        ]
        self.reads_outputs = bool(self._longer)

    def apply(self, logits: Tensor, outputs: list[Int32s]) -> None:
        """Ban in `logits` [R, V] in place; `outputs` are the rows' generated ids."""
        logits[self._single] = self._banned
        for row, prefix, last in self._longer:
            output = outputs[row]
            if output.size >= len(prefix) and output[-len(prefix) :].tolist() == prefix:
                logits[row, last] = _BANNED


class MinTokens:
    """Bans a request's stop tokens until it has generated min_tokens."""

    reads_outputs = False

    def __init__(
        self, rows: list[int], least: list[int], ids: list[Int64s], device: torch.device
    ) -> None:
        self._rows = rows
        self._least = least
        self._lengths = [len(row_ids) for row_ids in ids]
        self._pairs = _pairs(rows, ids, device)
        self._banned = torch.full((), _BANNED, device=device)

    def apply(self, logits: Tensor, outputs: list[Int32s]) -> None:
        """Ban in `logits` [R, V] in place; of `outputs` only their numbers matter."""
        pending = [
            outputs[row].size < least for row, least in zip(self._rows, self._least, strict=True)
        ]
        if all(pending):
            logits[self._pairs] = self._banned
        elif any(pending):
            chosen = to_device(np.repeat(pending, self._lengths).nonzero()[0], logits.device)
            logits[self._pairs[0][chosen], self._pairs[1][chosen]] = self._banned


class LogitBias:
    """Adds each request's logit_bias."""

    reads_outputs = False

    def __init__(self, rows: list[int], biases: list[TokenBias], device: torch.device) -> None:
        self._pairs = _pairs(rows, [bias.token_ids for bias in biases], device)
        values = np.concatenate([bias.values for bias in biases])
        self._values = to_device(values, device)

    def apply(self, logits: Tensor, outputs: list[Int32s]) -> None:
        """Add to `logits` [R, V] in place."""
        logits[self._pairs] += self._values
