"""Draft lengths: as many as pay; none where none came true, or where arithmetic is the limit."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.config.speculative import SpeculativeConfig
from vllm_lite.spec_decode.draft_length import AutomaticLengths, FixedLengths, make_lengths


def tokens_per_second(
    lengths: AutomaticLengths,
    acceptance: float,
    requests: int,
    share: float,
    steps: int = 600,
    begin: int = 0,
    noise: float = 0.0,
    seed: int = 0,
) -> float:
    """Output against that without drafts, where a draft adds `share` of a step's time.

    `noise` is what neighbours do to the times that are measured: now and then they double.
    """
    chance, neighbours = random.Random(seed), random.Random(seed)
    seconds, known = 0.0, [begin] * requests
    for step in range(steps):
        lengths.begin_step(step, requests)
        drafts = [lengths.choose(str(i), known[i], 8) for i in range(requests)]
        taken = 1 + share * sum(drafts)
        seen = taken * neighbours.lognormvariate(0, noise)
        seen *= 2 if neighbours.random() < noise / 3 else 1
        lengths.learn(requests, sum(drafts), 0.01 * seen)
        seconds += taken
        for i, count in enumerate(drafts):
            accepted = 0
            while accepted < count and chance.random() < acceptance:
                accepted += 1
            known[i] += 1 + accepted
            if count:
                lengths.observe(str(i), count, accepted)
    return sum(n - begin for n in known) / (seconds * requests)


@pytest.mark.parametrize("requests", [1, 8, 32, 64])
@pytest.mark.parametrize("acceptance", [0.0, 0.05, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("rows_per_read", [16, 48])
def test_drafts_never_cost(requests: int, acceptance: float, rows_per_read: int) -> None:
    share = 1 / max(requests, rows_per_read)
    assert tokens_per_second(AutomaticLengths(0.5), acceptance, requests, share) > 0.985


@pytest.mark.parametrize(
    ("acceptance", "requests", "gain"), [(0.7, 8, 1.2), (0.3, 8, 0.985), (0.3, 64, 0.985)]
)
def test_neighbours_are_no_reason_to_draft_or_not_to(
    acceptance: float, requests: int, gain: float
) -> None:
    share = 1 / max(requests, 24)
    found = [
        tokens_per_second(
            AutomaticLengths(0.5), acceptance, requests, share, steps=400, noise=0.15, seed=seed
        )
        for seed in range(4)
    ]
    assert mean(found) > gain and min(found) > 0.95


@pytest.mark.parametrize(("acceptance", "gain"), [(0.7, 2.2), (0.95, 4.5)])
def test_one_sequence_gains_what_its_drafts_allow(acceptance: float, gain: float) -> None:
    assert tokens_per_second(AutomaticLengths(0.5), acceptance, 1, 1 / 40) > gain


def test_drafts_that_come_true_again_are_tried_again() -> None:
    lengths = AutomaticLengths(0.5)
    tokens_per_second(lengths, 0.0, 1, 0.1)
    assert tokens_per_second(lengths, 0.9, 1, 0.1, begin=600) > 1.5


def test_one_slow_step_ends_no_drafts_for_ever() -> None:
    lengths = AutomaticLengths(0.5)
    tokens_per_second(lengths, 0.9, 2, 0.03)
    for _ in range(30):
        lengths.learn(2, 1, 1.0)
    assert tokens_per_second(lengths, 0.9, 2, 0.03, steps=4000) > 1.5


def test_requests_that_find_no_drafts_look_seldom_and_in_the_same_steps() -> None:
    lengths, known = AutomaticLengths(0.9), [0, 3, 5]
    looks: list[list[int]] = []
    for _ in range(20):
        lengths.learn(len(known), 0, 0.01)
    for step in range(400):
        lengths.begin_step(step, len(known))
        counts = [lengths.choose(str(i), known[i], 8) for i in range(len(known))]
        looks.append(counts)
        for i, count in enumerate(counts):
            known[i] += 1
            if count:
                lengths.observe(str(i), 0, 0)
    assert all(any(counts) == all(counts) for counts in looks)
    assert sum(map(any, looks)) < 24 + 400 / 8
    lengths.begin_step(400, len(known))
    lengths.observe("1", 2, 2)
    lengths.begin_step(401, len(known))
    assert [bool(lengths.choose(str(i), 401, 8)) for i in range(3)] == [False, True, False]


@given(most=st.integers(0, 9), requests=st.integers(1, 80))
def test_no_more_than_may_be(most: int, requests: int) -> None:
    lengths = AutomaticLengths(0.9)
    lengths.begin_step(1, requests)
    assert 0 <= lengths.choose("a", 3, most) <= most


def test_a_table_is_followed() -> None:
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=5,
        num_speculative_tokens_per_batch_size=[[1, 2, 4], [8, 99, 0]],
    )
    lengths = make_lengths(config)
    assert isinstance(lengths, FixedLengths)
    found = []
    for requests in (1, 2, 3, 8):
        lengths.begin_step(1, requests)
        found.append(lengths.choose("a", 0, 9))
    assert found == [4, 4, 5, 0]
