"""Codes in words: the compiled kernels take them apart as the reference does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference


def words(rows: int, columns: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, (rows, columns)).to(torch.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("outputs, inputs", [(1, 32), (37, 96), (16, 416), (50, 70)])
@pytest.mark.parametrize("are_turned", [False, True])
def test_words_of_inputs(bits: int, outputs: int, inputs: int, are_turned: bool) -> None:
    count = -(-inputs * bits // 32)
    stored = words(count, outputs).T if are_turned else words(outputs, count)
    check(stored, bits, False, (outputs, inputs))
    values = [int(word) & 0xFFFFFFFF for word in stored[0]]
    whole = sum(word << 32 * place for place, word in enumerate(values))
    codes = cpu.unpack_words(stored, bits)[0, :inputs]
    assert codes.tolist() == [(whole >> bits * i) % 2**bits for i in range(inputs)]


@pytest.mark.parametrize("outputs, inputs", [(8, 1), (40, 70), (256, 64), (296, 257)])
def test_words_of_outputs(outputs: int, inputs: int) -> None:
    stored = words(inputs, outputs // 8)
    check(stored, 4, True, (outputs, inputs))
    check(words(inputs, outputs // 4)[:, : outputs // 8], 4, True, (outputs, inputs))
    nibbles = [int(stored[0, 0]) >> 4 * place & 15 for place in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert cpu.unpack_words(stored, 4, True)[:8, 0].tolist() == nibbles


def check(stored: Tensor, bits: int, are_outputs: bool, shape: tuple[int, int]) -> None:
    """All codes, and some of them, written into a part of a matrix."""
    want = reference.unpack_words(stored, bits, are_outputs)
    assert torch.equal(cpu.unpack_words(stored, bits, are_outputs), want)
    for rows, columns in (shape, (max(1, shape[0] - 3), max(1, shape[1] - 5))):
        for each in (cpu, reference):
            whole = torch.full((rows + 2, columns + 2), 255, dtype=torch.uint8)
            each.unpack_words(stored, bits, are_outputs, whole[1:-1, 1:-1])
            assert torch.equal(whole[1:-1, 1:-1], want[:rows, :columns])
            whole[1:-1, 1:-1] = 255
            assert bool((whole == 255).all())


def test_a_result_that_has_more_codes_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        cpu.unpack_words(words(4, 4), 4, out=torch.empty(4, 33, dtype=torch.uint8))
