"""Drafts from a request's own text and from what earlier requests of its scope generated.

Source: SuffixDecoding (Oliaro et al., 2024): the longest run of last tokens that occurs elsewhere
is followed along its most frequent continuation, as far as that is likely enough. Instead of a
suffix tree there are hash chains over pairs of tokens, as in DEFLATE (RFC 1951): a few bytes a
token, and old texts are overwritten.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int32)
# Texts are found by their last so many tokens.
_PAIR = 2
# Places, the newest first, that are compared with a request's last tokens.
_MOST_PLACES = 64
# Tokens that a scope's store holds, and how many scopes have one.
_CAPACITY = 1 << 18
_MOST_SCOPES = 64
# Between two texts of a store; no token has this id.
_END = -1


@dataclass(slots=True)
class Guess:
    """Tokens that may follow, and how many of them are expected to come true."""

    token_ids: Int32s
    score: float = 0.0


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
        self._longest_match = longest_match
        self._num_texts = num_texts
        self._drafts_per_match = drafts_per_match
        self._least_probability = least_probability
        self._stores: OrderedDict[str, TextStore] = OrderedDict()

    def propose(self, token_ids: Int32s, most: int, scope: str) -> Int32s:
        """Up to `most` tokens that may follow a request's `token_ids` [L]."""
        if len(token_ids) < _PAIR:
            return _NONE
        pair = token_ids[-_PAIR:]
        here = np.flatnonzero((token_ids[:-2] == pair[0]) & (token_ids[1:-1] == pair[1])) + _PAIR
        guess = self._follow(token_ids, here[: -_MOST_PLACES - 1 : -1], token_ids, most)
        store = self._stores.get(scope)
        if store is not None:
            other = self._follow(store.token_ids, store.places(pair), token_ids, most)
            if other.score > guess.score:
                guess = other
        return guess.token_ids

    def remember(self, token_ids: Int32s, scope: str) -> None:
        """Take note of the `token_ids` [L] that a request of `scope` generated."""
        if not self._num_texts or len(token_ids) <= _PAIR:
            return
        store = self._stores.pop(scope, None) or TextStore(self._num_texts)
        self._stores[scope] = store
        store.add(token_ids)
        if len(self._stores) > _MOST_SCOPES:
            self._stores.popitem(last=False)

    def _follow(self, text: Int32s, places: Int64s, token_ids: Int32s, most: int) -> Guess:
        """The likeliest continuation of `token_ids` in `text` [N].

        `places` [P] lie behind occurrences of the last pair, the newest first.
        """
        # Where a text ended, nothing follows: a longer match there is no reason to give up.
        places = places[places < len(text)]
        places = places[text[places] != _END]
        if not len(places):
            return Guess(_NONE)
        size = _PAIR
        while size < min(self._longest_match, len(token_ids)):
            before = places - size - 1
            is_longer = (before >= 0) & (text[before] == token_ids[-size - 1])
            if not is_longer.any():
                break
            places, size = places[is_longer], size + 1
        most = min(most, int(self._drafts_per_match * size))
        probability, score = 1.0, 0.0
        drafts: list[int] = []
        while len(drafts) < most:
            if len(places) == 1:
                rest = text[places[0] : places[0] + most - len(drafts)].tolist()
                rest = rest[: rest.index(_END)] if _END in rest else rest
                return Guess(np.array(drafts + rest, np.int32), score + probability * len(rest))
            following = text[places[places < len(text)]]
            following = following[following != _END]
            if not len(following):
                break
            values, firsts, counts = np.unique(following, return_index=True, return_counts=True)
            # Of equally frequent ones, the newest.
            best = np.lexsort((firsts, -counts))[0]
            probability *= counts[best] / len(places)
            if probability < self._least_probability:
                break
            score += probability
            drafts.append(int(values[best]))
            places = places[places < len(text)]
            places = places[text[places] == values[best]] + 1
        return Guess(np.array(drafts, np.int32), score)


class TextStore:
    """The newest texts of a scope, in a ring, found by any two tokens that follow each other."""

    def __init__(self, num_texts: int, capacity: int = _CAPACITY) -> None:
        """Holds `num_texts` texts, and at most `capacity` tokens, a power of two."""
        self.token_ids = np.full(capacity, _END, np.int32)
        self._num_texts = num_texts
        # By a pair's hash the newest place behind it, and from each place the one before; -1: none.
        self._newest = np.full(capacity, -1, np.int64)
        self._before = np.full(capacity, -1, np.int64)
        # Tokens ever stored; the ring holds the last of them.
        self._num_stored = 0
        self._starts: deque[int] = deque()

    def add(self, token_ids: Int32s) -> None:
        """Store a text [L], of which the last tokens count if it is too long."""
        capacity = len(self.token_ids)
        token_ids = token_ids[-(capacity // 2) :]
        start, self._num_stored = self._num_stored, self._num_stored + len(token_ids) + 1
        where = np.arange(start, self._num_stored)
        self.token_ids[where % capacity] = np.append(token_ids, np.int32(_END))
        self._starts.append(start)
        if len(self._starts) > self._num_texts:
            self._starts.popleft()
        hashes = self._hash(token_ids[:-1], token_ids[1:])
        places = where[_PAIR:]
        # Places of one hash in a row, each linked to the one before.
        order = np.argsort(hashes, kind="stable")
        hashes, places = hashes[order], places[order]
        is_first = np.append(True, hashes[1:] != hashes[:-1])
        before = np.append(-1, places[:-1])
        before[is_first] = self._newest[hashes[is_first]]
        self._before[places % capacity] = before
        is_last = np.append(is_first[1:], True)
        self._newest[hashes[is_last]] = places[is_last]

    def places(self, pair: Int32s) -> Int64s:
        """Indices in `token_ids` behind occurrences of `pair` [2], the newest first."""
        capacity = len(self.token_ids)
        oldest = max(self._starts[0] if self._starts else 0, self._num_stored - capacity)
        found: list[int] = []
        place = int(self._newest[self._hash(pair[:1], pair[1:])[0]])
        for _ in range(_MOST_PLACES):
            if place < oldest + _PAIR:
                break
            found.append(place % capacity)
            before = int(self._before[place % capacity])
            # A place that was overwritten leads to a newer one.
            place = before if before < place else -1
        behind = np.array(found, np.int64)
        first, second = self.token_ids[behind - 2], self.token_ids[behind - 1]
        found_there: Int64s = behind[(first == pair[0]) & (second == pair[1])]
        return found_there

    def _hash(self, first: Int32s, second: Int32s) -> Int64s:
        # Knuth's multiplier spreads ids, which are small.
        mixed = first.astype(np.int64) * 2_654_435_761 + second.astype(np.int64) * 40_503
        hashes: Int64s = (mixed ^ (mixed >> 17)) & (len(self._newest) - 1)
        return hashes
