"""Find stop strings in a growing text, character by character (Aho-Corasick).

Owns the automaton and nothing of tokens. Invariant: what is found, and how much is held back,
depends on the text alone, never on how it was cut into pieces.
Source: Aho and Corasick, "Efficient string matching", CACM 18(6), 1975.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """`end` counts characters of the piece just fed, up to and with the match's last one."""

    stop: str
    end: int


class StopMatcher:
    """Follows a text and reports when the first of `stops` is complete."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty; of those that end together the first listed wins."""
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._stop: list[str | None] = [None]
        self._state = 0
        order = {stop: rank for rank, stop in reversed(list(enumerate(stops)))}
        for stop in order:
            self._add(stop)
        self._link(order)
        self._starts = frozenset(stop[0] for stop in order)

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            child = self._next[state].get(char)
            if child is None:
                child = self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._stop.append(None)
            state = child
        self._stop[state] = stop

    def _link(self, order: dict[str, int]) -> None:
        """Give each state its longest proper suffix, and the stop string that ends there."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            suffix = self._fail[state]
            ending = [stop for stop in (self._stop[state], self._stop[suffix]) if stop is not None]
            self._stop[state] = min(ending, key=order.__getitem__, default=None)
            for char, child in self._next[state].items():
                self._fail[child] = self._step(suffix, char)
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while (child := self._next[state].get(char)) is None:
            if state == 0:
                return 0
            state = self._fail[state]
        return child

    @property
    def num_held_back(self) -> int:
        """Characters at the text's end that may still become part of a stop string."""
        return self._depth[self._state]

    def feed(self, text: str, can_stop: bool) -> StopMatch | None:
        """Read on; the first match in `text`, where reading ends, or None.

        With `can_stop` false, matches that end in `text` do not count.
        """
        state = self._state
        if state == 0 and self._starts.isdisjoint(text):
            return None
        for index, char in enumerate(text):
            state = self._step(state, char)
            stop = self._stop[state]
            if stop is None:
                continue
            if can_stop:
                self._state = state
                return StopMatch(stop, index + 1)
            # A match that does not count can only go on as the start of another one.
            while state and not self._next[state]:
                state = self._fail[state]
        self._state = state
        return None
