"""Arrival times of a load's requests.

Times are in seconds from the start and sampled before the first request is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class RampUp:
    """A rate that grows from `start` to `end` requests per second over the whole load."""

    strategy: Literal["linear", "exponential"]
    start: float
    end: float

    def rate(self, index: int, count: int) -> float:
        """The rate that request `index` of `count` comes at."""
        progress = index / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return self.start * float((self.end / self.start) ** progress)


@dataclass(frozen=True, slots=True)
class RateChange:
    """The ramp-up reaches `rps` whole requests per second `seconds` after the start."""

    rps: int
    seconds: float


def arrival_times(
    count: int, rate: float, burstiness: float, rng: np.random.Generator
) -> list[float]:
    """`count` times at `rate` requests per second, the last exactly at count / rate.

    Gaps are Gamma distributed with shape `burstiness`, which is Poisson arrival at 1 and even
    spacing at inf.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = np.cumsum([_gap(rate, burstiness, rng) for _ in range(count)])
    if times[-1] > 0:
        times *= count / rate / times[-1]
    return [float(time) for time in times]


def ramp_up_times(
    count: int, ramp_up: RampUp, burstiness: float, rng: np.random.Generator
) -> tuple[list[float], list[RateChange]]:
    """`count` times at a growing rate, and when the rate passes each whole number."""
    times: list[float] = []
    changes: list[RateChange] = []
    now = 0.0
    for index in range(count):
        rate = ramp_up.rate(index, count)
        now += _gap(rate, burstiness, rng)
        times.append(now)
        if not changes or int(rate) > changes[-1].rps:
            changes.append(RateChange(int(rate), now))
    return times, changes


def _gap(rate: float, burstiness: float, rng: np.random.Generator) -> float:
    if math.isinf(burstiness):
        return 1.0 / rate
    return float(rng.gamma(shape=burstiness, scale=1.0 / (rate * burstiness)))
