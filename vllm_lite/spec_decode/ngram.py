"""Drafts from a request's own text: what followed its last tokens where they occurred before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


class NgramDrafter:
    """Guesses that the last tokens continue as at their first occurrence in the text.

    Source: prompt lookup decoding (Saxena, 2023), as in vLLM: the longest run of last tokens that
    occurs earlier, at its first place.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        """Numbers of last tokens to look for."""
        self._shortest, self._longest = shortest, longest

    def propose(self, token_ids: Int32s, most: int, scope: str) -> Int32s:
        """Up to `most` tokens that may follow a request's `token_ids` [L]."""
        text, width, length = token_ids.tobytes(), token_ids.itemsize, len(token_ids)
        for size in range(min(self._longest, length - 1), self._shortest - 1, -1):
            last = text[-size * width :]
            # The last match is the last tokens themselves, with nothing after them.
            place = text.find(last)
            while place % width:
                place = text.find(last, place + 1)
            after = place // width + size
            if after < length:
                return token_ids[after : after + most]
        return np.empty(0, np.int32)

    def remember(self, token_ids: Int32s, scope: str) -> None:
        """Do nothing: a request's own text is all that is looked at."""
