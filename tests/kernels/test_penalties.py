"""Penalties of lists of tokens equal the reference, bit for bit."""

from __future__ import annotations

import pytest
import torch

from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference


def lists(sizes: list[int], vocab_size: int) -> tuple[torch.Tensor, ...]:
    """Rows in reverse, starts, ids, times and factors of so many tokens each."""
    ids = [torch.randperm(vocab_size)[:size] for size in sizes]
    times = torch.randint(0, 4, (sum(sizes),)).float()
    factors = torch.rand(len(sizes), 3) + torch.tensor([0.5, -0.5, -0.5])
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.arange(len(sizes)).flip(0), starts, torch.cat(ids), times, factors


@pytest.mark.parametrize("sizes", [[5], [0, 3, 40, 1], [7] * 20])
def test_penalties(sizes: list[int]) -> None:
    logits = torch.randn(len(sizes), 100)[:, :40]
    logits[0, :3] = torch.tensor([0.0, -0.0, float("-inf")])
    expected = logits.clone()
    entries = lists(sizes, 40)
    reference.penalize_tokens(expected, *entries)
    cpu.penalize_tokens(logits, *entries)
    assert torch.equal(logits, expected)


def test_factors_of_one_and_zero_change_nothing() -> None:
    logits = torch.randn(1, 9)
    rows, starts, ids, times, _ = lists([9], 9)
    expected = logits.clone()
    cpu.penalize_tokens(logits, rows, starts, ids, times, torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.equal(logits, expected)


def test_lists_that_do_not_fit_are_refused() -> None:
    rows, starts, ids, times, factors = lists([3, 2], 9)
    logits = torch.randn(2, 9)
    expected = logits.clone()
    with pytest.raises(IndexError, match="row 2"):
        cpu.penalize_tokens(logits, rows + 1, starts, ids, times, factors)
    with pytest.raises(IndexError, match="token"):
        cpu.penalize_tokens(logits, rows, starts, ids + 9, times, factors)
    with pytest.raises(IndexError, match="overlap"):
        cpu.penalize_tokens(logits, rows, torch.tensor([0, 6, 5]), ids, times, factors)
    with pytest.raises(ValueError, match="cover"):
        cpu.penalize_tokens(logits, rows, starts + 1, ids, times, factors)
    with pytest.raises(ValueError, match="float32"):
        cpu.penalize_tokens(logits, rows, starts, ids, times.double(), factors)
    assert torch.equal(logits, expected)
