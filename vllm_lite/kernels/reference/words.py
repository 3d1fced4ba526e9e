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


def _awq_numbers(words: Tensor) -> Tensor:
    """AWQ's words [N, W], each of eight outputs, to numbers of four bits [8 W, N] uint8."""
    # Copied even if there is one row, whose view by bytes would not be dense.
    turned = words.T.clone(memory_format=torch.contiguous_format)
    stored = turned.view(torch.uint8).view(-1, len(words), 4)
    # Places one by one: to gather them, or to stack them, takes several times as long.
    eights = stored.new_empty(len(stored), 8, len(words))
    for to, place in enumerate(AWQ_PLACES):
        _field(stored[..., place // 2], place % 2 * 4, 4, eights[:, to])
    return eights.flatten(0, 1)


def unpack_words(
    words: Tensor, bits: int, are_outputs: bool = False, out: Tensor | None = None
) -> Tensor:
    """The codes [M, N] uint8, lowest bits first, of words int32 [M, N * bits / 32].

    With `are_outputs` words [N, M / 8] have AWQ's eight outputs each. `out` is filled with as many
    rows and columns as it has.
    """
    if are_outputs:
        codes = _awq_numbers(words)
    else:
        # Codes that cross words come round after as many words as they have bits.
        whole = 1 if 8 % bits == 0 else bits
        codes = numbers(torch.nn.functional.pad(words, (0, -words.shape[1] % whole)), bits)
        codes = codes[:, : words.shape[1] * 32 // bits]
    return codes if out is None else out.copy_(codes[: out.shape[0], : out.shape[1]])
