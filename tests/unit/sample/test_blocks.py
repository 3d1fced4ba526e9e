"""Searches and draws against their plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_lite.sample.blocks import argmax, descending, draw, largest, running_block_sums
from vllm_lite.sample.counter_rng import stream_key, uniforms


@pytest.mark.parametrize("size", [1, 63, 300, 4096, 5003])
@pytest.mark.parametrize("count", [1, 5, 50])
def test_largest_is_topk(size: int, count: int) -> None:
    values = torch.randn(7, size)
    count = min(count, size)
    found, ids = largest(values, count)
    assert torch.equal(found, values.topk(count).values)
    assert torch.equal(values.gather(1, ids), found)


def test_largest_survives_ties_and_infinities() -> None:
    values = torch.full((2, 5000), float("-inf"))
    values[0, 17] = values[0, 4999] = 1.0
    values[1] = 3.0
    found, ids = largest(values, 4)
    assert found[0].tolist() == [1.0, 1.0, float("-inf"), float("-inf")]
    assert set(ids[0, :2].tolist()) == {17, 4999}
    assert found[1].tolist() == [3.0] * 4 and len(set(ids[1].tolist())) == 4


def test_argmax_and_descending() -> None:
    values = torch.randn(5, 777)
    assert torch.equal(argmax(values), values.argmax(-1))
    assert torch.equal(descending(values), values.sort(-1, descending=True).values)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 1200),
    seed=st.integers(0, 2**31),
    sparsity=st.floats(0, 0.99),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_draw_inverts_the_cumulative_distribution(
    size: int, seed: int, sparsity: float, chance: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random(size, np.float32) * (rng.random(size) >= sparsity)
    weights[rng.integers(size)] = 1.0
    drawn = int(draw(torch.from_numpy(weights)[None], torch.tensor([chance]).double())[0])
    assert weights[drawn] > 0
    cumulative = np.cumsum(weights, dtype=np.float64)
    target, slack = chance * cumulative[-1], 1e-6 * cumulative[-1]
    assert cumulative[drawn] >= target - slack
    assert cumulative[drawn] - weights[drawn] <= target + slack


def test_the_edges_of_a_draw_are_tokens_with_weight() -> None:
    weights = torch.zeros(2, 1000)
    weights[:, 300], weights[:, 700] = 1.0, 1.0
    last = np.nextafter(1.0, 0.0)
    assert draw(weights, torch.tensor([0.0, last]).double()).tolist() == [300, 700]


def test_a_row_sums_alike_alone_and_in_company() -> None:
    weights = torch.rand(64, 5003)
    together = running_block_sums(weights)
    for row in (0, 13, 63):
        assert torch.equal(running_block_sums(weights[row : row + 1])[0], together[row])


def test_uniforms_are_uniform_and_streams_differ() -> None:
    keys = np.array([stream_key(seed) for seed in range(100)], np.uint64)
    positions = np.arange(1000, dtype=np.int64)
    drawn = uniforms(np.repeat(keys, 1000), np.tile(positions, 100)).reshape(100, 1000)
    assert drawn.min() >= 0 and drawn.max() < 1
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    # Chi-square with 99 degrees of freedom exceeds 170 once in 100,000 tries.
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 170
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.02


def test_stream_keys_tell_seed_and_stream_apart() -> None:
    keys = {stream_key(seed, stream) for seed in range(-20, 20) for stream in range(40)}
    assert len(keys) == 1600
    assert stream_key(-(2**63)) != stream_key(2**63 - 1)
