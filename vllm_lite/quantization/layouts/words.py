"""Small integers in orders that few tools pack them in. Knows no format's names."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference.words import AWQ_PLACES, numbers


def paired_numbers(stored: Tensor, bits: int) -> Tensor:
    """The same of words in which each eight numbers have the even ones first."""
    found = numbers(stored, bits)
    return found.view(*found.shape[:-1], -1, 8)[..., AWQ_PLACES].flatten(-2)


def fast_numbers(words: Tensor) -> Tensor:
    """AWQ's `gemv_fast`: [M / 4, N] int16 to codes [M, N] uint8.

    A word has one code of each of four runs of 16, in which rows and inputs are interleaved.
    """
    rows, inputs = 4 * len(words), words.shape[1]
    # Four rows share 64 words of a step of 64 inputs.
    codes = numbers(words, 4).view(rows // 4, inputs // 64, 4, 64).transpose(1, 2)
    codes = codes.reshape(rows, inputs // 32, 4, 2, 4).transpose(3, 4)
    codes = codes.reshape(rows, inputs // 32, 4, 4, 2).transpose(2, 3)
    return codes.reshape(rows, inputs)


def padded_groups(groups: int, group_size: int) -> int:
    """AWQ's `gemv` layouts: groups with those that fill words."""
    multiple = max(1, 128 // group_size)
    words = -(-groups // 8)
    return -(-words // multiple) * multiple * 8


def stacked_numbers(words: Tensor, bits: int, rows: int) -> Tensor:
    """HQQ's words, of which each holds a number of several runs of rows: [rows, W] uint8.

    The first run has the highest bits; three bits go into int32 ten at a time.
    """
    count = 10 if bits == 3 else 8 // bits
    runs = [(words >> (bits * place)) & (2**bits - 1) for place in reversed(range(count))]
    return torch.cat([run.to(torch.uint8) for run in runs])[:rows]
