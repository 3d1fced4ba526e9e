"""Interfaces of a grammar engine: compiled grammars, and matchers that follow one sequence.

The backends implement it; whoever masks tokens sees only this. A mask row has one bit a token,
least significant bit first in int32 words, 1 for a token that may come next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    Masks = npt.NDArray[np.int32]  # [R, W]


# Longest run of whitespace, so that no sequence generates it endlessly.
MAX_WHITESPACE = 32


class GrammarError(Exception):
    """A constraint cannot be compiled; the message is for the client and names what is wrong."""


class MatcherError(Exception):
    """A matcher cannot go on: the grammar grew too costly, or a token broke it."""


class Refusal(msgspec.Struct, tag=True):
    """Why a constraint is refused, as the client will read it."""

    message: str
    param: str
    status: int = 400

    @classmethod
    def of(cls, constraint: str, reason: str, status: int = 400) -> Refusal:
        """The refusal of the field that holds the constraint, whose name `reason` goes on from."""
        field = f"structured_outputs.{constraint}"
        return cls(field + reason, field, status)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The model's tokens as a grammar engine needs them: bytes by id, as wide as the logits."""

    # Empty for ids without a token.
    tokens: list[bytes]
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]

    @property
    def mask_words(self) -> int:
        return -(-len(self.tokens) // 32)


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """The marks around a model's reasoning, as bytes and as the tokens that write them.

    `end_ids` are what is dictated when a budget is spent; they may write more than the mark.
    """

    start: bytes
    end: bytes
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


class TokenizerFacts(msgspec.Struct):
    """The tokenizer as a compile process describes it; `reasoning` where a parser marks it."""

    vocabulary: Vocabulary
    reasoning: ReasoningTokens | None = None


class Matcher(Protocol):
    """Follows one sequence through a grammar."""

    def fill(self, masks: Masks, row: int) -> None:
        """Write which tokens may come next to `masks[row]`. Raises MatcherError."""

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, with nothing changed or the matcher useless, if it may not."""

    def accept_bytes(self, data: bytes) -> bool:
        """Go on by text that is a part of a token."""

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids` may come next, one after the other; changes nothing."""

    def rollback(self, num_tokens: int) -> None:
        """Go back by tokens that were accepted."""

    def forced_text(self) -> bytes:
        """Text that must come next, as far as the grammar leaves no choice; b"" where it does."""

    @property
    def is_terminated(self) -> bool:
        """Whether the end-of-sequence token was accepted."""


class CompiledGrammar(Protocol):
    """A grammar for one vocabulary; any number of sequences may follow it at a time."""

    @property
    def num_bytes(self) -> int:
        """Roughly what it holds in memory."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning."""
