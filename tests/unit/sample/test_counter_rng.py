"""The numbers that draws are made with."""

from __future__ import annotations

import numpy as np

from vllm_lite.sample.counter_rng import stream_key, uniforms


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
