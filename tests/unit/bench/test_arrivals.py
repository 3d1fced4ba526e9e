"""Arrival times: their mean, their shape and their end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_lite.bench.load import RampUp, arrival_times, ramp_up_times


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(
    count=st.integers(1, 50),
    rate=st.floats(0.01, 1000),
    burstiness=st.floats(0.1, 10) | st.just(math.inf),
    seed=st.integers(0, 5),
)
@settings(deadline=None)
def test_times_grow_and_end_at_count_over_rate(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    times = arrival_times(count, rate, burstiness, rng(seed))
    assert times == sorted(times) and times[0] >= 0
    assert times[-1] == pytest.approx(count / rate)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(5, math.inf, 1.0, rng()) == [0.0] * 5


def test_infinite_burstiness_is_even() -> None:
    assert arrival_times(4, 2.0, math.inf, rng()) == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_gaps_have_the_deviation_of_their_shape() -> None:
    for burstiness in (0.25, 1.0, 4.0):
        gaps = np.diff(arrival_times(20_000, 10.0, burstiness, rng()))
        # Coefficient of variation of a Gamma distribution.
        assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_seed_repeats_itself() -> None:
    assert arrival_times(9, 3.0, 1.0, rng(4)) == arrival_times(9, 3.0, 1.0, rng(4))
    assert arrival_times(9, 3.0, 1.0, rng(4)) != arrival_times(9, 3.0, 1.0, rng(5))


def test_ramp_up_rates_go_from_start_to_end() -> None:
    linear, exponential = RampUp("linear", 2, 10), RampUp("exponential", 1, 16)
    assert [linear.rate(i, 5) for i in range(5)] == [2, 4, 6, 8, 10]
    assert [exponential.rate(i, 5) for i in range(5)] == pytest.approx([1, 2, 4, 8, 16])
    assert linear.rate(0, 1) == 2


def test_ramp_up_tells_when_it_passes_each_whole_rate() -> None:
    times, changes = ramp_up_times(5, RampUp("linear", 1, 3), math.inf, rng())
    assert times == pytest.approx(np.cumsum([1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3]))
    assert [change.rps for change in changes] == [1, 2, 3]
    assert [change.seconds for change in changes] == [times[0], times[2], times[4]]
