"""Small integers in words: unpacked, whatever their bits. Knows no format's names."""

from __future__ import annotations

import torch
from torch import Tensor

# The place of each of eight numbers where even ones come first, as AWQ's and BitBLAS's do.
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
# Unpacked at a time: copies stay small, and in a core's cache.
_RUNS_AT_ONCE = 1 << 16


def numbers(words: Tensor, bits: int) -> Tensor:
    """Integers [..., W] of any width to the numbers [..., W * width / bits] uint8 in them.

    Lowest bits come first; numbers may cross from one word into the next.
    """
    stored = words.contiguous().view(torch.uint8)
    # Numbers that do not share a byte evenly come round after as many bytes as they have bits.
    width = 1 if 8 % bits == 0 else bits
    runs = stored.view(*stored.shape[:-1], -1, width).flatten(0, -2)
    found = stored.new_empty(len(runs), 8 * width // bits)
    for some, out in zip(
        *(torch.split(each, _RUNS_AT_ONCE) for each in (runs, found)), strict=True
    ):
        if width == 1:
            pieces = [(some[:, 0] >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
            torch.stack(pieces, -1, out=out)
        else:
            places = torch.arange(8, device=words.device)
            whole = (some.long() << (8 * places[:bits])).sum(-1, keepdim=True)
            out.copy_((whole >> (bits * places)) & (2**bits - 1))
    return found.view(*words.shape[:-1], -1)


def _field(stored: Tensor, shift: int, bits: int, out: Tensor) -> None:
    """Write the `bits` from `shift` on of each byte to `out`."""
    if shift:
        torch.bitwise_right_shift(stored, shift, out=out)
    if shift + bits < 8:
        torch.bitwise_and(out if shift else stored, 2**bits - 1, out=out)


def awq_numbers(words: Tensor) -> Tensor:
    """AWQ's words [N, W], each of eight outputs, to numbers of four bits [8 W, N] uint8."""
    # Copied even if there is one row, whose view by bytes would not be dense.
    turned = words.T.clone(memory_format=torch.contiguous_format)
    stored = turned.view(torch.uint8).view(-1, len(words), 4)
    # Places one by one: to gather them, or to stack them, takes several times as long.
    eights = stored.new_empty(len(stored), 8, len(words))
    for to, place in enumerate(AWQ_PLACES):
        _field(stored[..., place // 2], place % 2 * 4, 4, eights[:, to])
    return eights.flatten(0, 1)


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
