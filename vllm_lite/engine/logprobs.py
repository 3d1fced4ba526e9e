"""Log-probabilities as callers read them: token id -> Logprob, with each token's text."""

from __future__ import annotations

from collections.abc import Callable

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.outputs import Logprob, PositionLogprobs

DecodeToken = Callable[[int], str]


def position_logprobs(entry: TokenLogprobs, decode: DecodeToken | None) -> PositionLogprobs:
    """One position: the sampled (or prompt) token first, then the best ones in order.

    Without `decode` (no tokenizer, or detokenize=False) there is no text.
    """
    position: PositionLogprobs = {}
    for rank, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
        # The first entry has a rank of its own; after it, candidate i has rank i.
        position.setdefault(
            token_id,
            Logprob(logprob, rank or entry.rank, None if decode is None else decode(token_id)),
        )
    return position


class ChoiceLogprobs:
    """The log-probabilities of one choice's tokens, and their sum."""

    def __init__(self, decode: DecodeToken | None) -> None:
        self.positions: list[PositionLogprobs] = []
        self.cumulative = 0.0
        self._decode = decode

    def append(self, entries: list[TokenLogprobs]) -> None:
        """Take in the positions of a step's new tokens."""
        for entry in entries:
            self.positions.append(position_logprobs(entry, self._decode))
            self.cumulative += entry.logprobs[0]
