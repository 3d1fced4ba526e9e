"""A sequence's place in its reasoning: before it, inside, being ended by force, or past it.

Sees bytes of tokens, so that a marker is found however it is cut into tokens. Invariant: once
past, for ever past.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """The marks around a model's reasoning, as bytes and as the tokens that write them.

    `end_ids` are what is dictated when a budget is spent; they may write more than the mark.
    """

    start: bytes
    end: bytes
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


class Phase(Enum):
    """Of one sequence's reasoning."""

    BEFORE = "before"
    INSIDE = "inside"
    FORCED = "forced"  # the end's tokens are being dictated
    PAST = "past"


class Reasoning:
    """Follows one sequence; `begins_inside` is None where the prompt does not show it."""

    __slots__ = ("_budget", "_num_forced", "_num_inside", "_tail", "_tokens", "phase")

    def __init__(
        self, tokens: ReasoningTokens, begins_inside: bool | None, budget: int | None = None
    ) -> None:
        self._tokens = tokens
        self._budget = budget
        self._num_inside = 0
        self._num_forced = 0
        self._tail = b""
        self.phase = Phase.BEFORE
        if begins_inside is False:
            self.phase = Phase.PAST
        elif begins_inside or not tokens.start:
            self._enter()

    @property
    def opening_id(self) -> int | None:
        """The token that is the start's mark; None where it takes several."""
        ids = self._tokens.start_ids
        return ids[0] if len(ids) == 1 else None

    def assume(self) -> None:
        if self.phase is Phase.BEFORE:
            self._enter()

    @property
    def forced_id(self) -> int | None:
        """The token that must come next; None where the model may choose."""
        if self.phase is Phase.FORCED:
            return self._tokens.end_ids[self._num_forced]
        return None

    def skip(self) -> None:
        """The model has begun its answer without reasoning."""
        self.phase = Phase.PAST

    def accept(self, token_id: int, text: bytes) -> bytes | None:
        """Go on by one token; what it holds after the reasoning's end, if it ends the reasoning."""
        if self.phase is Phase.FORCED and token_id != self.forced_id:
            self._num_forced = 0  # a grammar does not let the end come here
        elif self.phase is Phase.FORCED:
            self._num_forced += 1
            if self._num_forced == len(self._tokens.end_ids):
                self.phase = Phase.PAST
                return b""
            return None
        marker = self._tokens.start if self.phase is Phase.BEFORE else self._tokens.end
        before = len(self._tail)
        seen = self._tail + text
        # A marker ends in this token, or it would have been found earlier.
        place = seen.find(marker, max(0, before - len(marker) + 1))
        if self.phase is Phase.BEFORE:
            self._tail = seen[-len(marker) :]
            if place >= 0:
                self._enter()
            return None
        self._num_inside += 1
        self._tail = seen[-len(marker) :]
        if place >= 0:
            self.phase = Phase.PAST
            return seen[place + len(marker) :]
        self._check_budget()
        return None

    def _enter(self) -> None:
        self.phase = Phase.INSIDE
        self._tail = b""
        self._check_budget()

    def _check_budget(self) -> None:
        if self._budget is not None and self._num_inside >= self._budget:
            self.phase = Phase.FORCED
