"""Drafts from a request's own text and from what earlier requests of its scope generated.

Source: SuffixDecoding (Oliaro et al., 2024): the longest run of last tokens that occurs elsewhere
is followed along its most frequent continuation, as far as that is likely enough. The search is
csrc/cpu/suffix.cpp: a step of many requests has one for each.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_lite.kernels.dispatch import compiled

Int32s = npt.NDArray[np.int32]

# Tokens that a scope's store holds, and how many scopes have one.
_CAPACITY = 1 << 18
_MOST_SCOPES = 64


class SuffixDrafter:
    """Guesses that the last tokens continue as they most often did."""

    def __init__(
        self,
        *,
        longest_match: int,
        num_texts: int,
        drafts_per_match: float,
        least_probability: float,
    ) -> None:
        """`longest_match`: most last tokens that are compared; `num_texts`: texts kept of a scope,
        0 for none; `drafts_per_match`: drafts for each token that matches; `least_probability` of
        a draft, by the numbers of places.
        """
        self._search = compiled()
        self._num_texts = num_texts
        self._rule = (longest_match, drafts_per_match, least_probability)
        self._stores: OrderedDict[str, Any] = OrderedDict()

    def propose(self, token_ids: Int32s, most: int, scope: str) -> Int32s:
        """Up to `most` tokens that may follow a request's `token_ids` [L]."""
        store = self._stores.get(scope)
        drafts = self._search.suffix_drafts(store, token_ids, most, *self._rule)
        return np.array(drafts, np.int32)

    def remember(self, token_ids: Int32s, scope: str) -> None:
        """Take note of the `token_ids` [L] that a request of `scope` generated."""
        if not self._num_texts or len(token_ids) <= self._search.DRAFT_PAIR:
            return
        store = self._stores.pop(scope, None) or self._search.TextStore(self._num_texts, _CAPACITY)
        self._stores[scope] = store
        store.add(token_ids)
        if len(self._stores) > _MOST_SCOPES:
            self._stores.popitem(last=False)
