"""Drafts by suffixes: the longest match is followed as it most often went on."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from vllm_lite import _cpu
from vllm_lite.spec_decode.suffix import SuffixDrafter

TOKENS = st.lists(st.integers(0, 3), min_size=2, max_size=40)


def drafter(**options: float) -> SuffixDrafter:
    settings = {"longest_match": 24, "num_texts": 10, "drafts_per_match": 2.0}
    return SuffixDrafter(**{**settings, "least_probability": 0.0, **options})  # type: ignore[arg-type]


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def occurrences(text: list[int], last: list[int]) -> list[int]:
    """Places behind `last` in `text` that have a token."""
    size = len(last)
    return [i + size for i in range(len(text) - size) if text[i : i + size] == last]


@given(tokens=TOKENS)
def test_the_first_draft_followed_the_longest_match_most_often(tokens: list[int]) -> None:
    drafts = drafter().propose(array(tokens), 4, "").tolist()
    sizes = [n for n in range(2, len(tokens)) if occurrences(tokens, tokens[-n:])]
    if not sizes:
        assert not drafts
        return
    counts = Counter(tokens[i] for i in occurrences(tokens, tokens[-min(max(sizes), 24) :]))
    assert counts[drafts[0]] == max(counts.values())
    # What is drafted stood there in this order.
    assert occurrences([*tokens, -1], [tokens[-1], *drafts])


@given(texts=st.lists(TOKENS, min_size=1, max_size=8), last=TOKENS)
@example(texts=[[1, 0, 1, 0]], last=[0, 1, 0])
def test_earlier_texts_of_the_scope_are_followed_and_no_others(
    texts: list[list[int]], last: list[int]
) -> None:
    one = drafter()
    for text in texts:
        one.remember(array(text), "mine")
    alone = drafter().propose(array(last), 3, "").tolist()
    assert one.propose(array(last), 3, "other").tolist() == alone
    drafts = one.propose(array(last), 3, "mine").tolist()
    sources = [[*text, -1] for text in [*texts, last]]
    assert not drafts or any(occurrences(text, [*last[-2:], *drafts]) for text in sources)
    if any(occurrences(text, last[-2:]) for text in [*texts, last] if len(text) > 2):
        assert drafts


def test_lengths_follow_the_match_and_its_probability() -> None:
    text = [*range(10, 20), 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert drafter(drafts_per_match=1.0).propose(array(text), 8, "").tolist() == [4, 5, 6]
    assert drafter(drafts_per_match=2.0).propose(array(text), 4, "").tolist() == [4, 5, 6, 7]
    split = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 8, 1, 2]
    assert drafter(least_probability=0.5).propose(array(split), 4, "").tolist() == [3]
    assert drafter(least_probability=0.7).propose(array(split), 4, "").tolist() == []


def test_old_texts_are_forgotten() -> None:
    one = drafter(num_texts=2)
    for start in (10, 20, 30):
        one.remember(array([1, 2, start, start + 1]), "")
    assert one.propose(array([1, 2]), 1, "").tolist() == [30]
    assert one.propose(array([10, 11]), 1, "").tolist() == []
    kept_none = drafter(num_texts=0)
    kept_none.remember(array([1, 2, 3, 4]), "")
    assert kept_none.propose(array([1, 2]), 1, "").tolist() == []


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=12), min_size=1, max_size=12))
def test_a_small_ring_finds_only_what_it_holds(texts: list[list[int]]) -> None:
    store = _cpu.TextStore(100, 32)
    written: list[int] = []
    for text in texts:
        store.add(array(text))
        written += [*text, -1]
    for first in range(6):
        for second in range(6):
            places = store.places(first, second)
            assert len(places) == len(set(places))
            held = written[-32:]
            offset = len(written) - len(held)
            wanted = {
                (i + 2 + offset) % 32
                for i in range(len(held) - 2)
                if held[i : i + 2] == [first, second]
            }
            assert set(places) <= wanted
            # Those whose hash no other place of the ring took over.
            assert bool(places) or not wanted or len(written) > 32
