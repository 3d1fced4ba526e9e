"""The tokens that a request's own fields forbid, in addition to its constraint.

The sampler applies both; here they meet, so that an error can name the fields at fault. Knows no
grammar. `logit_bias` forbids nothing: the least likely token can still be sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vllm_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm_lite.structured_output.grammar import Masks


class Bans:
    """Of one request; `end_ids` are the tokens that end its text by themselves."""

    def __init__(self, params: SamplingParams, end_ids: Iterable[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._fields = []
        allowed = np.ones(vocab_size, bool)
        if params.allowed_token_ids is not None:
            self._fields.append("allowed_token_ids")
            allowed[:] = False
            allowed[self._known(params.allowed_token_ids)] = True
        words = params.bad_words_token_ids or []
        if words:
            self._fields.append("bad_words")
            allowed[self._known(word[0] for word in words if len(word) == 1)] = False
        self._allowed = self._packed(allowed)
        self._longer = [word for word in words if len(word) > 1]
        self._min_tokens = params.min_tokens if params.stop_token_ids else 0
        ends = {*end_ids, *(params.stop_token_ids or ())}
        allowed[self._known(ends)] = False
        self._unended = self._packed(allowed)

    @property
    def is_empty(self) -> bool:
        """Whether they forbid nothing that a constraint does not settle itself."""
        return not (self._fields or self._min_tokens)

    def conflict(self, masks: Masks, row: int, outputs: Sequence[int]) -> str | None:
        """Why nothing may follow `outputs` where the constraint allows `masks[row]`; None if so."""
        is_early = len(outputs) < self._min_tokens
        left = masks[row] & (self._unended if is_early else self._allowed)
        for word in self._longer:
            start = len(outputs) - len(word) + 1
            if start >= 0 and list(outputs[start:]) == word[:-1] and word[-1] < self._vocab_size:
                kept = np.ones(self._vocab_size, bool)
                kept[word[-1]] = False
                left &= self._packed(kept)
        if left.any():
            return None
        fields = [*self._fields, *(["min_tokens and stop_token_ids"] if is_early else [])]
        return (
            f"the request's constraint and its {' and '.join(fields)} leave no token that may "
            "come next; loosen one of them"
        )

    def _known(self, token_ids: Iterable[int]) -> list[int]:
        return [token_id for token_id in token_ids if token_id < self._vocab_size]

    def _packed(self, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """A row of a mask, least significant bit first."""
        bits = np.zeros(-(-self._vocab_size // 32) * 32, bool)
        bits[: self._vocab_size] = allowed
        return np.packbits(bits, bitorder="little").view(np.int32)
