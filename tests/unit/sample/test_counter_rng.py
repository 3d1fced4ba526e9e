"""The numbers that draws are made with."""

from __future__ import annotations

import numpy as np
import torch

from vllm_lite.kernels.reference.counter_rng import stream_key, uniforms


def test_uniforms_are_uniform_and_streams_differ() -> None:
    keys = np.array([stream_key(seed) for seed in range(100)], np.uint64)
    positions = np.arange(1000, dtype=np.int64)
    pairs = np.repeat(keys.view(np.int64), 1000), np.tile(positions, 100)
    drawn = uniforms(*map(torch.from_numpy, pairs)).numpy().reshape(100, 1000)
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


def test_a_stream_begins_where_it_is_told_to() -> None:
    keys = torch.from_numpy(
        np.array([stream_key(5, 7, first) for first in (0, 9)], np.uint64).view(np.int64)
    )
    drawn = uniforms(keys.repeat_interleave(3), torch.tensor([0, 1, 2, 9, 10, 11]))
    assert torch.equal(drawn[:3], drawn[3:])
