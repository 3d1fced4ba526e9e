"""Masking logits equals the reference: banned where a bit is 0, untouched elsewhere."""

from __future__ import annotations

import pytest
import torch

from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference


def masks(count: int, vocab_size: int, share: float) -> torch.Tensor:
    """`count` rows of bits; about `share` of the words have mixed bits, the rest are 0 or all 1."""
    words = torch.randint(-(2**31), 2**31, (count, -(-vocab_size // 32)), dtype=torch.int64)
    whole = -torch.randint(0, 2, words.shape)
    return torch.where(torch.rand(words.shape) < share, words, whole).to(torch.int32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, 40000])
@pytest.mark.parametrize("rows", [[], [0], [4, 1], [0, 1, 2, 3, 4]])
def test_apply_token_mask(vocab_size: int, rows: list[int]) -> None:
    logits = torch.randn(5, vocab_size + 3)[:, :vocab_size]
    expected = logits.clone()
    bits = masks(len(rows), vocab_size, 0.5)
    index = torch.tensor(rows, dtype=torch.int64)
    reference.apply_token_mask(expected, index, bits)
    cpu.apply_token_mask(logits, index, bits)
    assert torch.equal(logits, expected)


@pytest.mark.usefixtures("isa")
def test_a_bit_allows_only_its_token() -> None:
    for token in (0, 31, 32, 63, 69):
        logits = torch.zeros(1, 70)
        bits = torch.zeros(1, 3, dtype=torch.int64)
        bits[0, token // 32] = 1 << token % 32
        bits = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
        cpu.apply_token_mask(logits, torch.tensor([0]), bits)
        assert logits[0].isfinite().nonzero().tolist() == [[token]]


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    logits, rows = torch.zeros(2, 64), torch.tensor([0])
    bits = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(IndexError):
        cpu.apply_token_mask(logits, torch.tensor([2]), bits)
    with pytest.raises(ValueError, match="do not cover"):
        cpu.apply_token_mask(logits, rows, bits[:, :1])
    with pytest.raises(ValueError, match=r"dense torch\.int64"):
        cpu.apply_token_mask(logits, torch.tensor([0, 1]), bits)
    with pytest.raises(ValueError, match="float32"):
        cpu.apply_token_mask(logits.double(), rows, bits)
    assert not logits.any()
