"""The tokens that one sequence may generate next: by its reasoning's budget, then its grammar.

Knows tokens and masks, no scheduler. Invariant: with a grammar, the sequence can only end where
the grammar lets it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from vllm_lite.log import init_logger
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.grammar import Matcher, MatcherError, ReasoningTokens, Vocabulary

if TYPE_CHECKING:
    from vllm_lite.structured_output.grammar import Masks

logger = init_logger(__name__)

Result = TypeVar("Result")
# Processor seconds for a sequence's grammar: an initial budget, and more per token.
MASK_SECONDS = 1.0
MASK_SECONDS_PER_TOKEN = 0.01
_WHITESPACE = b" \t\r\n"


class Phase(Enum):
    """Of one sequence's reasoning."""

    BEFORE = "before"
    INSIDE = "inside"
    FORCED = "forced"  # the end marker's tokens are forced
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
            self._num_forced = 0  # the grammar forbids the end marker here
        elif self.phase is Phase.FORCED:
            self._num_forced += 1
            if self._num_forced == len(self._tokens.end_ids):
                self.phase = Phase.PAST
                return b""
            return None
        marker = self._tokens.start if self.phase is Phase.BEFORE else self._tokens.end
        before = len(self._tail)
        seen = self._tail + text
        # A marker must end in this token: earlier ones were found before.
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


class ConstrainedSequence:
    """Masks and follows one sequence; either part may be absent."""

    __slots__ = ("_matcher", "_num_tokens", "_reasoning", "_seconds", "_vocabulary")

    def __init__(
        self, vocabulary: Vocabulary, matcher: Matcher | None, reasoning: Reasoning | None
    ) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._reasoning = reasoning
        self._seconds = 0.0
        self._num_tokens = 0
        if matcher is not None and reasoning is not None and reasoning.opening_id is None:
            reasoning.assume()

    def fill(self, masks: Masks, row: int) -> bool:
        """Write what may come next to `masks[row]`; False where anything may.

        Raises MatcherError where the grammar has become too costly to follow.
        """
        reasoning = self._reasoning
        if reasoning is None or reasoning.phase is Phase.PAST:
            if self._matcher is None:
                return False
            self._fill_by_grammar(masks, row)
            return True
        if (forced := reasoning.forced_id) is not None:
            masks[row] = 0
            self._allow(masks, row, forced)
            return True
        if self._matcher is None:
            return False
        start_id = self._opening_id()
        if start_id is not None:
            self._fill_by_grammar(masks, row)
            self._allow(masks, row, start_id)
            return True
        masks[row] = -1
        for token_id in self._vocabulary.eos_ids:
            masks[row, token_id >> 5] &= ~_bit(token_id)
        return True

    def accept(self, token_id: int) -> None:
        """Go on by the token that was sampled; raises MatcherError where it breaks the grammar."""
        self._num_tokens += 1
        data = b""
        reasoning = self._reasoning
        if reasoning is not None and reasoning.phase is not Phase.PAST:
            start_id = self._opening_id()
            if start_id is None or token_id == start_id:
                rest = reasoning.accept(token_id, self._vocabulary.tokens[token_id])
                if rest is None or self._matcher is None:
                    return
                data = rest.lstrip(_WHITESPACE)
                if not data:
                    return
                token_id = -1
            else:
                reasoning.skip()
        if self._matcher is None:
            return
        matcher = self._matcher
        is_accepted = self._timed(
            lambda: matcher.accept_bytes(data) if data else matcher.accept(token_id)
        )
        if not is_accepted:
            raise MatcherError("a token broke the request's constraint")

    def forced_text(self) -> bytes:
        """Text that must come next by the grammar alone; b"" where there is a choice.

        Raises MatcherError.
        """
        matcher, reasoning = self._matcher, self._reasoning
        if matcher is None or (reasoning and reasoning.phase is not Phase.PAST):
            return b""
        return self._timed(matcher.forced_text)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids` may come next, one after the other, by the grammar alone.

        Raises MatcherError.
        """
        matcher, reasoning = self._matcher, self._reasoning
        if matcher is None or (reasoning and reasoning.phase is not Phase.PAST):
            return 0
        return self._timed(lambda: matcher.num_allowed(token_ids))

    def fill_ahead(self, masks: Masks, row: int, drafts: Sequence[int]) -> None:
        """Write to `masks[row]` what may come next, and what after each of `drafts` to the next.

        `drafts` are allowed ones (num_allowed). Raises MatcherError.
        """
        matcher = self._matcher
        if matcher is None:
            raise RuntimeError("a sequence without a grammar has no drafts")
        self._fill_by_grammar(masks, row)
        for number, token_id in enumerate(drafts, 1):
            matcher.accept(token_id)
            self._fill_by_grammar(masks, row + number)
        if drafts:
            self._timed(lambda: matcher.rollback(len(drafts)))

    def must_end(self, masks: Masks, row: int) -> bool:
        """Whether nothing but the end of the sequence may come next; overwrites `masks[row]`.

        Raises MatcherError where the grammar has become too costly to follow.
        """
        reasoning = self._reasoning
        if self._matcher is None or (reasoning and reasoning.phase is not Phase.PAST):
            return False
        if self._matcher.is_terminated:
            return True
        self._fill_by_grammar(masks, row)
        for token_id in self._vocabulary.eos_ids:
            masks[row, token_id >> 5] &= ~_bit(token_id)
        return not masks[row].any()

    def _opening_id(self) -> int | None:
        """The one token that opens reasoning, where the model may also answer at once.

        With a marker of several tokens this is undecidable, so reasoning is assumed.
        """
        reasoning = self._reasoning
        if reasoning is None or reasoning.phase is not Phase.BEFORE or self._matcher is None:
            return None
        return reasoning.opening_id

    def _fill_by_grammar(self, masks: Masks, row: int) -> None:
        matcher = self._matcher
        if matcher is None:
            raise RuntimeError("a sequence without a grammar has no mask")
        self._timed(lambda: matcher.fill(masks, row))

    def _timed(self, call: Callable[[], Result]) -> Result:
        """A call of the grammar, on the sequence's time; what fails in it is a MatcherError."""
        start = time.thread_time()
        found = guarded(call)
        self._seconds += time.thread_time() - start
        if self._seconds > MASK_SECONDS + MASK_SECONDS_PER_TOKEN * self._num_tokens:
            raise MatcherError("the request's constraint takes too long to follow; simplify it")
        return found

    @staticmethod
    def _allow(masks: Masks, row: int, token_id: int) -> None:
        masks[row, token_id >> 5] |= _bit(token_id)


def guarded(call: Callable[[], Result]) -> Result:
    """The result of a grammar engine's `call`; any failure becomes a MatcherError.

    A panic in Rust is no Exception. Interrupts pass.
    """
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MatcherError):
        raise
    except BaseException as error:
        logger.warning("A grammar engine failed", exc_info=error)
        raise MatcherError("the request's constraint cannot be followed any further") from None


def _bit(token_id: int) -> int:
    bit = 1 << (token_id & 31)
    return bit - (1 << 32) if bit >> 31 else bit


class BudgetedSequence(ConstrainedSequence):
    """A grammar from the first token on, with a budget for the reasoning that it lets a text have.

    Once that is spent the end of reasoning is dictated, from the first place on where the grammar
    allows it.
    """

    __slots__ = ("_budgeted",)

    def __init__(self, vocabulary: Vocabulary, matcher: Matcher, reasoning: Reasoning) -> None:
        super().__init__(vocabulary, matcher, None)
        self._budgeted = reasoning

    def forced_text(self) -> bytes:
        """Nothing: a budget may end the reasoning at any token."""
        return b""

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """None, for the same reason."""
        return 0

    def fill(self, masks: Masks, row: int) -> bool:
        super().fill(masks, row)
        forced = self._budgeted.forced_id
        if forced is not None and masks[row, forced >> 5] & _bit(forced):
            masks[row] = 0
            self._allow(masks, row, forced)
        return True

    def accept(self, token_id: int) -> None:
        super().accept(token_id)
        if self._budgeted.phase is not Phase.PAST:
            self._budgeted.accept(token_id, self._vocabulary.tokens[token_id])
