"""Choosing tokens by Triton's interpreter: the same tokens as the reference chooses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.test_sampling import choices, random_choices
from vllm_lite.kernels import reference_logits, reference_sampling
from vllm_lite.kernels.triton import ops, sampling
from vllm_lite.sample.counter_rng import stream_key, uniforms

INFINITY = float("inf")
SIZES = [1, 5, 257, 600]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several blocks stay small."""
    monkeypatch.setattr(sampling, "_BLOCK", 256)


@pytest.mark.parametrize("size", SIZES)
def test_draws_are_those_of_the_reference(size: int) -> None:
    few = torch.randint(0, 4, (4, size)).float()  # ties on both sides of every threshold
    logits = torch.cat([torch.randn(4, size) * 0.01, torch.randn(6, size) * 4, few])
    wide = torch.randn(14, size + 3)[:, :size].copy_(logits)
    how = random_choices(14, size)
    ours, theirs = ops.draw_tokens(wide, *how), reference_sampling.draw_tokens(logits, *how)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    assert torch.equal(wide, logits)
    assert torch.equal(ops.greedy_tokens(wide)[0], reference_sampling.greedy_tokens(logits)[0])


def test_a_row_that_admits_no_token_says_so_and_harms_no_other() -> None:
    logits = torch.randn(6, 300)
    how = choices(*[(1.0, 0.1, 7, 0.9)] * 6)
    before = ops.draw_tokens(logits, *how)
    logits[0, 299], logits[1, 7], logits[2] = float("nan"), INFINITY, -INFINITY
    tokens, largest = ops.draw_tokens(logits, *how)
    assert largest.isfinite().tolist() == [False] * 3 + [True] * 3
    assert tokens.min() >= 0 and tokens.max() < 300
    assert torch.equal(tokens[3:], before[0][3:])
    assert torch.equal(ops.greedy_tokens(logits)[1].isfinite(), largest.isfinite())


def test_what_is_banned_is_never_drawn() -> None:
    logits = torch.full((12, 500), -INFINITY)
    allowed = torch.randint(500, (12, 2))
    logits.scatter_(1, allowed, torch.randn(12, 2))
    tokens = ops.draw_tokens(logits, *random_choices(12, 500))[0]
    assert (allowed == tokens[:, None]).any(1).all()


@pytest.mark.parametrize(("size", "num_top"), [(1, 1), (5, 0), (255, 3), (257, 20), (600, 0)])
def test_log_probabilities(size: int, num_top: int) -> None:
    logits = torch.randint(-9, 4, (5, size)) / 2
    logits[1, size // 2 :][1:] = -INFINITY
    rows, ids = torch.tensor([4, 1, 1]), torch.tensor([0, size // 2, size - 1])
    for is_normalized in (True, False):
        arguments = (logits, rows, ids, num_top, is_normalized)
        ours = ops.token_logprobs(*arguments)
        theirs = reference_sampling.token_logprobs(*arguments)
        torch.testing.assert_close(ours, theirs)


def test_many_candidates_are_sorted() -> None:
    arguments = (torch.randn(2, 300), torch.tensor([1]), torch.tensor([7]), 300)
    theirs = reference_sampling.token_logprobs(*arguments)
    torch.testing.assert_close(ops.token_logprobs(*arguments), theirs)


def test_random_numbers_are_the_hosts() -> None:
    keys = np.array([stream_key(seed, 3) for seed in range(-9, 9)], np.uint64)
    positions = np.arange(18, dtype=np.int64) * 71_993
    host = torch.from_numpy(uniforms(keys, positions))
    arguments = torch.from_numpy(keys.view(np.int64)), torch.from_numpy(positions)
    assert torch.equal(reference_logits.counter_uniforms(*arguments), host)
    assert torch.equal(ops.counter_uniforms(*arguments), host)


@pytest.mark.parametrize("size", [31, 1030])
def test_penalties_follow_what_a_slot_has_seen(size: int) -> None:
    slots = torch.tensor([5, 0, 3])
    prompted = torch.randint(-(2**31), 2**31 - 1, (6, -(-size // 32)), dtype=torch.int32)
    counts = torch.randint(0, 3, (6, size), dtype=torch.int16)
    counts[3, 7] = reference_logits.MOST_COUNTED
    factors = torch.tensor([[1.3, 0.5, -0.2], [1.0, 0.0, 0.0], [1.0, 0.1, 0.0]]).T.contiguous()
    logits = torch.randn(3, size)
    results = []
    for implementation in (ops, reference_logits):
        ours, seen = logits.clone(), counts.clone()
        implementation.count_tokens(seen, slots, torch.tensor([size - 1, -1, 7]))
        implementation.penalize_logits(ours, slots, prompted, seen, *factors)
        pairs = torch.tensor([2, -1, 0]), torch.tensor([4, 4, 30])
        implementation.add_to_logits(ours, *pairs, torch.tensor([1.5, 9.0, -INFINITY]))
        results.append((ours, seen))
    torch.testing.assert_close(results[0], results[1])
    assert torch.equal(results[0][0][1], logits[1]) and results[0][0][0, 30] == -INFINITY
