"""Small integers in words: unpacked, whatever their bits. Knows no format's names."""

from __future__ import annotations

import torch
from torch import Tensor

# AWQ's place of each of a word's eight numbers.
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


def numbers(words: Tensor, bits: int) -> Tensor:
    """Integers [..., W] of any width to the numbers [..., W * width / bits] uint8 in them.

    Lowest bits come first; numbers may cross from one word into the next.
    """
    stored = words.contiguous().view(torch.uint8)
    if 8 % bits == 0:
        pieces = [(stored >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
        return torch.stack(pieces, -1).flatten(-2)
    places = torch.arange(8, device=words.device)
    # As many bytes as a number has bits hold eight numbers.
    runs = stored.view(*stored.shape[:-1], -1, bits).long() << (8 * places[:bits])
    parts: Tensor = (runs.sum(-1, keepdim=True) >> (bits * places)) & (2**bits - 1)
    return parts.to(torch.uint8).flatten(-2)


def awq_numbers(words: Tensor) -> Tensor:
    """AWQ's words [..., W] to numbers of four bits [..., 8 W] uint8."""
    stored = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    halves = stored & 15, stored >> 4
    # Places one by one: to gather them, or to stack them, takes several times as long.
    eights = stored.new_empty(*words.shape, 8)
    for to, place in enumerate(AWQ_PLACES):
        eights[..., to] = halves[place % 2][..., place // 2]
    return eights.flatten(-2)


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
