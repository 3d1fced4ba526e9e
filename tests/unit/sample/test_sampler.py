"""Choosing: distributions, reproducibility, and rows that do not depend on each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.sample.reference import probabilities
from tests.unit.sample.rows import Case, Rows, sample_once
from vllm_lite.sample.sampler import Sampler
from vllm_lite.sampling_params import SamplingParams

DRAWS = 4000


def drawn_frequencies(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """How often each token is drawn over many seeds."""
    counts = torch.zeros(len(logits))
    for start in range(0, DRAWS, 400):
        rows = Rows(len(logits), num_slots=400)
        for slot in range(400):
            rows.put(slot, Case(params.clone(seed=start + slot)))
        tokens = rows.sample(logits.expand(400, -1), range(400)).token_ids
        counts += torch.bincount(torch.tensor(tokens), minlength=len(logits))
    return counts


def test_greedy_takes_the_largest_logit() -> None:
    logits = torch.randn(5, 3001)
    output = sample_once(logits, [Case(SamplingParams(temperature=0))] * 5)
    assert output.token_ids == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.7, top_k=5),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.3, top_k=6, top_p=0.8, min_p=0.05),
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-6),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    wanted = probabilities(logits.numpy().astype(np.float64), params)
    found = drawn_frequencies(logits, params).numpy()
    assert not found[wanted == 0].any()
    expected = wanted[wanted > 0] * DRAWS
    chi_square = ((found[wanted > 0] - expected) ** 2 / expected).sum()
    # Eleven degrees of freedom exceed 43 once in 100,000 tries.
    assert chi_square < 43


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([7, 200, 5003]),
    scale=st.sampled_from([0.01, 1.0, 6.0]),
    filters=st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0, 2.0]),
            st.sampled_from([0, 1, 3, 40, 200, 4000, 10**6]),
            st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
            st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        ),
        min_size=1,
        max_size=4,
    ),
)
@example(seed=0, size=7, scale=6.0, filters=[(0.3, 0, 1.0, 0.0)])
@example(seed=0, size=5003, scale=6.0, filters=[(0.3, 0, 1.0, 0.0), (0.3, 0, 1.0, 0.01)])
@example(seed=0, size=5003, scale=6.0, filters=[(0.3, 4000, 1.0, 0.0)] * 4)
def test_the_tokens_kept_are_those_of_the_definition(
    seed: int, size: int, scale: float, filters: list[tuple[float, int, float, float]]
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((len(filters), size)) * scale).astype(np.float32)
    cases = [
        Case(SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, logprobs=-1))
        for t, k, p, m in filters
    ]
    output = sample_once(torch.from_numpy(logits), cases, "processed_logprobs")
    for row, case in enumerate(cases):
        wanted = probabilities(logits[row].astype(np.float64), case.params)
        found = np.zeros(size)
        ids, logprobs = output.logprobs[row].token_ids, output.logprobs[row].logprobs
        found[ids[1:]] = np.exp(logprobs[1:])
        # Rounding may move the boundary by a token; that token's mass is then tiny or tied.
        assert np.abs((found > 0).sum() - (wanted > 0).sum()) <= max(1, 1e-3 * size)
        np.testing.assert_allclose(found, wanted, atol=2e-3 + 2 / size * (case.params.top_p < 1))
        assert found[output.token_ids[row]] > 0


def test_ties_with_the_last_token_kept_are_kept() -> None:
    logits = torch.zeros(1, 100)
    logits[0, [3, 50, 80]] = 2.0
    params = SamplingParams(top_k=2, logprobs=-1)
    found = sample_once(logits, [Case(params)], "processed_logits").logprobs[0]
    kept = [i for i, x in zip(found.token_ids[1:], found.logprobs[1:], strict=True) if x > -1e9]
    assert sorted(kept) == [3, 50, 80]


MIX = [
    SamplingParams(temperature=0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, top_k=20, temperature=0.7),
    SamplingParams(seed=3, top_p=0.9),
    SamplingParams(seed=4, min_p=0.1, repetition_penalty=1.2),
    SamplingParams(seed=5, top_p=0.99, temperature=1.5, logprobs=3),
    SamplingParams(temperature=0, presence_penalty=1.0, logprobs=0),
    SamplingParams(seed=6, top_k=3000),
]


def generate(order: list[int], num_steps: int, rows_apart: bool) -> dict[int, list[int]]:
    """Tokens of each of MIX, sampled together in `order`, or one by one."""
    rows = Rows(5003)
    table = torch.randn(num_steps, len(MIX), 5003, generator=torch.Generator().manual_seed(0))
    for slot in order:
        rows.put(slot, Case(MIX[slot].clone(max_tokens=None)))
    chosen: dict[int, list[int]] = {slot: [] for slot in order}
    for step in range(num_steps):
        groups = [[slot] for slot in order] if rows_apart else [order]
        for group in groups:
            tokens = rows.sample(table[step, group], group).token_ids
            rows.append(group, tokens)
            for slot, token_id in zip(group, tokens, strict=True):
                chosen[slot].append(token_id)
    return chosen


def test_a_rows_tokens_do_not_depend_on_its_batch() -> None:
    everyone = list(range(len(MIX)))
    together = generate(everyone, 6, rows_apart=False)
    assert generate(everyone[::-1], 6, rows_apart=False) == together
    assert generate(everyone, 6, rows_apart=True) == together


def test_a_seeded_request_goes_on_as_before_after_it_was_preempted() -> None:
    params = SamplingParams(seed=11, max_tokens=None)
    logits = torch.randn(8, 1, 500)
    rows = Rows(500)
    rows.put(0, Case(params))
    whole: list[int] = []
    for step in range(8):
        whole += rows.sample(logits[step], [0]).token_ids
        rows.append([0], whole[-1:])
    back = Rows(500, seed=99)
    back.put(7, Case(params, output=whole[:5]))
    for step in range(5, 8):
        assert back.sample(logits[step], [7]).token_ids == [whole[step]]
        back.append([7], [whole[step]])


def test_requests_without_a_seed_differ_but_the_engines_seed_repeats_them() -> None:
    logits = torch.zeros(32, 10_000)

    def sample(seed: int) -> list[int]:
        rows = Rows(10_000, seed=seed)
        for slot in range(32):
            rows.put(slot, Case(SamplingParams()))
        return rows.sample(logits, range(32)).token_ids

    assert len(set(sample(0))) > 28
    assert sample(0) == sample(0) != sample(1)


def test_a_row_that_admits_no_token_fails_alone() -> None:
    logits = torch.randn(6, 300)
    logits[1, 4] = float("nan")
    logits[2] = float("-inf")
    logits[3, 7] = float("inf")
    wanted = int(logits[0].argmax())
    for params in (SamplingParams(temperature=0), SamplingParams(seed=1, top_p=0.9)):
        cases = [Case(SamplingParams(temperature=0)), *[Case(params)] * 3]
        cases += [Case(SamplingParams(seed=5)), Case(SamplingParams(allowed_token_ids=[9]))]
        output = sample_once(logits, cases)
        assert output.failed_rows == [1, 2, 3]
        assert output.token_ids[0] == wanted and output.token_ids[5] == 9
        assert all(0 <= token_id < 300 for token_id in output.token_ids)


def test_min_tokens_that_bans_the_only_allowed_token_is_an_error_of_that_row() -> None:
    params = SamplingParams(allowed_token_ids=[2], min_tokens=1, temperature=0)
    output = sample_once(torch.randn(2, 50), [Case(params), Case(SamplingParams())])
    assert output.failed_rows == [0]


def test_a_batch_is_built_once_while_nothing_changes() -> None:
    rows = Rows(50)
    rows.put(0, Case(SamplingParams()))
    rows.put(1, Case(SamplingParams(top_k=3)))
    batch = rows.states.batch(np.array([0, 1]))
    assert rows.states.batch(np.array([0, 1])) is batch
    assert rows.states.batch(np.array([1, 0])) is not batch
    again = rows.states.batch(np.array([0, 1]))
    rows.put(1, Case(SamplingParams()))
    assert rows.states.batch(np.array([0, 1])) is not again


def test_an_all_greedy_batch_carries_nothing() -> None:
    rows = Rows(50)
    rows.put(0, Case(SamplingParams(temperature=0)))
    batch = rows.states.batch(np.array([0]))
    assert batch.processors == () and batch.random is None and batch.reporting is None


def test_an_unknown_logprobs_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="logprobs_mode"):
        Sampler(Rows(5).table, "cooked")
