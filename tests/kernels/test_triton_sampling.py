"""Sampling in Triton's interpreter gives the reference's tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime import interpreter

from tests.kernels.test_sampling import choices, random_choices
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.gpu.triton import ops, sampling
from vllm_lite.kernels.reference import counter_rng
from vllm_lite.kernels.reference import sampling as reference_sampling

INFINITY = float("inf")
SIZES = [1, 5, 257, 600]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several blocks stay small."""
    monkeypatch.setattr(sampling, "_BLOCK", 256)


@pytest.mark.parametrize("size", SIZES)
def test_sampled_tokens_match_the_reference(size: int) -> None:
    few = torch.randint(0, 4, (4, size)).float()  # ties on both sides of every threshold
    logits = torch.cat([torch.randn(4, size) * 0.01, torch.randn(6, size) * 4, few])
    wide = torch.randn(14, size + 3)[:, :size].copy_(logits)
    how = random_choices(14, size)
    ours, theirs = ops.sample_tokens(wide, *how), reference_sampling.sample_tokens(logits, *how)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    assert torch.equal(wide, logits)
    assert torch.equal(ops.greedy_tokens(wide)[0], reference_sampling.greedy_tokens(logits)[0])


def test_random_numbers_are_the_reference_s_bit_by_bit() -> None:
    keys = torch.randint(-(2**63), 2**63 - 1, (70,))
    positions = torch.randint(0, 2**20, (70,))
    positions[:2] = torch.tensor([0, 2**63 - 1])
    assert torch.equal(ops.uniforms(keys, positions), counter_rng.uniforms(keys, positions))


def test_a_rows_token_depends_on_that_row_alone() -> None:
    logits, how = torch.randn(6, 1500) * 3, random_choices(6, 1500)
    logits[:3, 900] = logits[:3, 1400] = 20.0  # a tie of two parts
    together = ops.sample_tokens(logits, *how)
    greedy = ops.greedy_tokens(logits)
    assert torch.equal(greedy[0], cpu.greedy_tokens(logits)[0]) and (greedy[0][:3] == 900).all()
    assert torch.equal(together[0], cpu.sample_tokens(logits, *how)[0])
    for row in range(6):
        one = slice(row, row + 1)
        alone = ops.sample_tokens(logits[one], *how.of(one))
        assert torch.equal(alone[0], together[0][one]) and torch.equal(alone[1], together[1][one])
        assert torch.equal(ops.greedy_tokens(logits[one])[0], greedy[0][one])


def test_greedy_tokens_take_two_launches_and_drawn_ones_three(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[tuple[str, Any]] = []
    run = interpreter.GridExecutor.__call__

    def record(executor: Any, *args: Any, **kwargs: Any) -> None:
        launched.append((executor.fn.__name__, tuple(executor.grid)))
        run(executor, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    logits = torch.randn(2, 600)
    ops.greedy_tokens(logits)
    assert launched == [("part_largest_kernel", (2, 3)), ("greedy_kernel", (2,))]
    launched.clear()
    ops.sample_tokens(logits, *random_choices(2, 600))
    parts = [(name, (2, 3)) for name in ("part_largest_kernel", "weights_kernel")]
    assert launched == [*parts, ("draw_kernel", (2,))]


def test_a_row_without_tokens_is_reported_and_affects_no_other() -> None:
    logits = torch.randn(6, 300)
    how = choices(*[(1.0, 0.1, 7, 0.9)] * 6)
    before = ops.sample_tokens(logits, *how)
    logits[0, 299], logits[1, 7], logits[2] = float("nan"), INFINITY, -INFINITY
    tokens, largest = ops.sample_tokens(logits, *how)
    assert largest.isfinite().tolist() == [False] * 3 + [True] * 3
    assert tokens.min() >= 0 and tokens.max() < 300
    assert torch.equal(tokens[3:], before[0][3:])
    assert torch.equal(ops.greedy_tokens(logits)[1].isfinite(), largest.isfinite())


def test_banned_tokens_are_never_sampled() -> None:
    logits = torch.full((12, 500), -INFINITY)
    allowed = torch.randint(500, (12, 2))
    logits.scatter_(1, allowed, torch.randn(12, 2))
    tokens = ops.sample_tokens(logits, *random_choices(12, 500))[0]
    assert (allowed == tokens[:, None]).any(1).all()


@pytest.mark.parametrize(("size", "num_top"), [(1, 1), (5, 0), (700, 3), (257, 20), (600, 0)])
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
