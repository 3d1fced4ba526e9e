"""Marks of reasoning are found however they are cut, and a budget ends it by force."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.structured_output.walks import BYTES, EOS, allowed, compiled
from vllm_lite.structured_output.compiler import GrammarEngines
from vllm_lite.structured_output.grammar import MatcherError, ReasoningTokens, Refusal
from vllm_lite.structured_output.sequence import (
    BudgetedSequence,
    ConstrainedSequence,
    Phase,
    Reasoning,
)

TOKENS = ReasoningTokens(b"<t>", b"</t>", (1, 2, 3), (4, 5))


def feed(reasoning: Reasoning, *parts: bytes) -> bytes | None:
    """The text after the end marker in the part that ends reasoning."""
    for number, part in enumerate(parts):
        rest = reasoning.accept(number, part)
        if rest is not None:
            return rest
    return None


@pytest.mark.parametrize(
    ("parts", "rest"),
    [
        ([b"abc", b"</t>"], b""),
        ([b"a<", b"/", b"t", b">x"], b"x"),
        ([b"</t", b"x</", b"t>", b"y"], b""),
        ([b"<</t>{"], b"{"),
        ([b"</t"], None),
        ([b"\xe2</", b"\x82t>"], None),
    ],
)
def test_the_end_is_found_in_any_pieces(parts: list[bytes], rest: bytes | None) -> None:
    reasoning = Reasoning(TOKENS, True)
    assert feed(reasoning, *parts) == rest
    assert (reasoning.phase is Phase.PAST) == (rest is not None)


def test_what_the_prompt_tells_is_where_it_begins() -> None:
    assert Reasoning(TOKENS, True).phase is Phase.INSIDE
    assert Reasoning(TOKENS, False).phase is Phase.PAST
    reasoning = Reasoning(TOKENS, None)
    assert reasoning.phase is Phase.BEFORE
    feed(reasoning, b"\n<", b"t>")
    assert reasoning.phase is Phase.INSIDE


def test_a_budget_counts_tokens_inside_and_forces_the_end() -> None:
    reasoning = Reasoning(TOKENS, None, budget=2)
    assert feed(reasoning, b"some", b" text", b"<t>", b"one") is None
    assert reasoning.forced_id is None
    assert feed(reasoning, b"two") is None
    assert reasoning.forced_id == 4
    assert reasoning.accept(4, b"</") is None
    assert reasoning.forced_id == 5
    assert reasoning.accept(5, b"t>") == b""
    assert reasoning.phase is Phase.PAST and reasoning.forced_id is None


def test_an_end_of_its_own_comes_before_the_budgets() -> None:
    reasoning = Reasoning(TOKENS, True, budget=3)
    assert feed(reasoning, b"a", b"</t>") == b""
    assert reasoning.forced_id is None


def sequence(engines: GrammarEngines, reasoning: Reasoning | None) -> ConstrainedSequence:
    grammar = compiled(engines, regex="[ab]+")
    assert not isinstance(grammar, Refusal)
    return ConstrainedSequence(BYTES, grammar.matcher(), reasoning)


def next_ids(constrained: ConstrainedSequence) -> list[int]:
    masks = np.zeros((2, BYTES.mask_words), np.int32)
    masks[0] = 7
    assert constrained.fill(masks, 1)
    assert (masks[0] == 7).all()
    return allowed(masks[1])


def test_inside_reasoning_all_but_the_end_of_the_sequence_may_come(
    engines: GrammarEngines,
) -> None:
    constrained = sequence(engines, Reasoning(TOKENS, True))
    assert next_ids(constrained) == [i for i in range(len(BYTES.tokens)) if i != EOS]


def test_the_grammar_takes_what_follows_the_mark_in_its_token(engines: GrammarEngines) -> None:
    marks = ReasoningTokens(b"<t>", b'a"', (1, 2, 3), (4,))
    constrained = sequence(engines, Reasoning(marks, True))
    for byte in b'..a"':
        constrained.accept(byte)
    assert next_ids(constrained) == [ord("a"), ord("b")]
    constrained.accept(ord("b"))
    assert next_ids(constrained) == [ord("a"), ord("b"), EOS]


def test_a_single_mark_may_open_reasoning_or_be_left_out(engines: GrammarEngines) -> None:
    mark = ReasoningTokens(b"<mark>", b"</t>", (257,), (4,))
    for first, phase in ((257, Phase.INSIDE), (ord("a"), Phase.PAST)):
        reasoning = Reasoning(mark, None)
        constrained = sequence(engines, reasoning)
        assert next_ids(constrained) == [ord("a"), ord("b"), 257]
        constrained.accept(first)
        assert reasoning.phase is phase


def test_a_token_that_breaks_the_grammar_is_told(engines: GrammarEngines) -> None:
    constrained = sequence(engines, None)
    with pytest.raises(MatcherError):
        constrained.accept(ord("z"))


def test_a_sequence_knows_when_it_can_only_end(engines: GrammarEngines) -> None:
    grammar = compiled(engines, choice=["ab"])
    assert not isinstance(grammar, Refusal)
    constrained = ConstrainedSequence(BYTES, grammar.matcher(), None)
    masks = np.zeros((1, BYTES.mask_words), np.int32)
    assert not constrained.must_end(masks, 0)
    constrained.accept(ord("a"))
    assert not constrained.must_end(masks, 0)
    constrained.accept(ord("b"))
    assert constrained.must_end(masks, 0)


@pytest.mark.parametrize("budget", range(6))
def test_a_budget_holds_within_a_grammar_from_the_start(
    engines: GrammarEngines, budget: int
) -> None:
    # Reasoning that may only end after pairs of letters, as far as the grammar is concerned.
    grammar = compiled(engines, regex="([ab][ab])+</t>[ab]")
    assert not isinstance(grammar, Refusal)
    marks = ReasoningTokens(b"<t>", b"</t>", (1, 2, 3), tuple(b"</t>"))
    reasoning = Reasoning(marks, True, budget)
    constrained = BudgetedSequence(BYTES, grammar.matcher(), reasoning)
    text = b""
    while not text.endswith(b"</t>"):
        ids = next_ids(constrained)
        assert len(ids) == 1 or set(ids) <= set(b"ab<")
        constrained.accept(ids[0] if len(ids) == 1 else ord("a"))
        text += bytes(ids[:1]) if len(ids) == 1 else b"a"
    assert len(text) == max(2, budget + budget % 2) + len("</t>")
    assert reasoning.phase is Phase.PAST
    assert next_ids(constrained) == [ord("a"), ord("b")]
