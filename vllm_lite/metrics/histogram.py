"""A histogram that costs a bisection to feed; its buckets become cumulative when it is read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of observations by upper bound; the bounds end in infinity."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a bound belongs to its own bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many."""
        for value in values:
            self.observe(value)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last bound being +Inf."""
        names = [str(float(bound)) for bound in self._bounds] + ["+Inf"]
        cumulative, result = 0, []
        for name, count in zip(names, self._counts, strict=True):
            cumulative += count
            result.append((name, float(cumulative)))
        return result


def one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `limit`."""
    bounds, power = [], 1
    while power <= limit:
        bounds += [float(m * power) for m in (1, 2, 5) if m * power <= limit]
        power *= 10
    return bounds
