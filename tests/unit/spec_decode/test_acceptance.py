"""Drafts that are kept by chance are kept as often as is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.config.speculative import SpeculativeConfig
from vllm_lite.spec_decode.acceptance import SyntheticAcceptance, make_acceptance


@pytest.mark.parametrize("rates", [[0.7, 0.49, 0.34], [1.0, 1.0], [0.5, 0.0, 0.0], [0.0]])
def test_places_are_kept_as_often_as_told(rates: list[float]) -> None:
    steps, count = 20_000, len(rates) + 1
    kept = SyntheticAcceptance(rates).keep(np.full(steps, count)).reshape(steps, count)
    assert not kept[:, -1].any()  # no draft follows the last row
    shares = kept[:, :-1].cumprod(1).mean(0)
    assert np.abs(shares - rates).max() < 0.015


@given(st.lists(st.integers(0, 6), max_size=8))
def test_every_row_is_told(counts: list[int]) -> None:
    kept = SyntheticAcceptance([1.0, 1.0]).keep(np.array(counts, np.int64))
    expected = [place < min(count - 1, 2) for count in counts for place in range(count)]
    assert kept.tolist() == expected


def test_a_length_becomes_rates() -> None:
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=4,
        rejection_sample_method="synthetic",
        synthetic_acceptance_length=3.5,
    )
    assert config.synthetic_rates == [1.0, 1.0, 0.5, 0.0]
    assert make_acceptance(config) is not None
    assert make_acceptance(SpeculativeConfig()) is None
