"""Log-probabilities as callers read them: token id -> Logprob, with each token's text."""

from __future__ import annotations

from collections.abc import Callable

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.outputs import Logprob, PositionLogprobs

DecodeToken = Callable[[int], str]


def position_logprobs(
    entry: TokenLogprobs, decode: DecodeToken | None, *, is_ranked: bool = True
) -> PositionLogprobs:
    """One position: the sampled (or prompt) token first, then the best ones in order.

    Those that were chosen by their ids (not `is_ranked`) have no rank. Without `decode`
    (no tokenizer, or detokenize=False) there is no text.
    """
    position: PositionLogprobs = {}
    for index, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
        # The first entry has a rank of its own; after it, candidate i has rank i.
        rank = entry.rank if index == 0 else index if is_ranked else None
        text = None if decode is None else decode(token_id)
        position.setdefault(token_id, Logprob(logprob, rank, text))
    return position


class ChoiceLogprobs:
    """The log-probabilities of one choice's tokens, and their sum."""

    def __init__(self, decode: DecodeToken | None, *, is_ranked: bool = True) -> None:
        self.positions: list[PositionLogprobs] = []
        self.cumulative = 0.0
        self._decode = decode
        self._is_ranked = is_ranked

    def append(self, entries: list[TokenLogprobs]) -> None:
        """Take in the positions of a step's new tokens."""
        for entry in entries:
            position = position_logprobs(entry, self._decode, is_ranked=self._is_ranked)
            self.positions.append(position)
            self.cumulative += entry.logprobs[0]

    def truncate(self, num_positions: int) -> None:
        """Forget all but the first positions."""
        for position in self.positions[num_positions:]:
            self.cumulative -= next(iter(position.values())).logprob
        del self.positions[num_positions:]
