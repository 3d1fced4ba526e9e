"""Drafts that are kept by chance, to measure what a share of accepted drafts would be worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from vllm_lite.config.speculative import SpeculativeConfig


class SyntheticAcceptance:
    """Keeps each draft with a probability of its place; every rank draws the same."""

    def __init__(self, rates: Sequence[float]) -> None:
        """`rates`: of each place, the probability that it and those before it are kept."""
        before = np.array([1.0, *rates])
        # Nothing is kept where one before it is never kept, nor beyond the last place.
        given = np.divide(before[1:], before[:-1], out=np.zeros(len(rates)), where=before[:-1] > 0)
        self._given = np.append(given, 0.0)
        self._chance = np.random.default_rng(0)

    def keep(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the draft after each row is kept, of requests with `counts` [R] rows, [S]."""
        places = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        is_last = np.repeat(counts, counts) == places + 1
        given = self._given[np.minimum(places, len(self._given) - 1)]
        kept: npt.NDArray[np.bool_] = (self._chance.random(len(places)) < given) & ~is_last
        return kept


def make_acceptance(config: SpeculativeConfig) -> SyntheticAcceptance | None:
    """Acceptance by chance; None where drafts are kept that equal the sampled tokens."""
    rates = config.synthetic_rates
    return None if rates is None else SyntheticAcceptance(rates)
