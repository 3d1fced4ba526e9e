"""The order of codes in Marlin's tiles of 16 inputs by 64 outputs, and in its kin.

Marlin (Frantar et al. 2024) stores each thread's operands next to each other. Indices here turn
tiles into rows of outputs again.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vllm_lite.kernels.reference.words import numbers

_TILE = 16
Kind = Literal["marlin", "marlin_24", "qqq", "qqq_whole"]
# Within eight codes of a word; those of 8 bits take four.
_EVEN_FIRST = [0, 2, 4, 6, 1, 3, 5, 7]
_HALVES = [4, 0, 5, 1, 6, 2, 7, 3]


def from_tiles(words: Tensor, bits: int, kind: Kind) -> Tensor:
    """Words [N / 16, M * bits / 2] int32 to codes [M, N] uint8."""
    tiles = numbers(words, bits)
    order = _order(bits, kind).argsort()
    tiles = tiles.reshape(-1, len(order))[:, order]
    tiles = tiles.reshape(len(words), -1, _TILE, _TILE).transpose(1, 2)
    return tiles.flatten(0, 1).flatten(1).T


def from_tiled_scales(scales: Tensor, kind: Kind) -> Tensor:
    """Scales [G, M], in the order that Marlin's threads read them, to [M, G]."""
    groups = len(scales)
    eights = torch.arange(64).view(8, 8)
    if kind == "marlin_24":
        order = eights if groups == 1 else eights[:, [0, 4, 1, 5, 2, 6, 3, 7]]
    elif groups == 1:
        places = torch.tensor([0, 1, 8, 9, 16, 17, 24, 25])
        order = 2 * torch.arange(4)[:, None] + places
    else:
        order = eights.T
    order = order.flatten()
    return scales.reshape(-1, len(order))[:, order.argsort()].reshape(groups, -1).T


def pairs_of(meta: Tensor) -> Tensor:
    """Places of the two codes kept of each four inputs: [N / 32, 2 M] int16 to [M, N / 4] uint8.

    The lower two bits are the first place, the next two the second. CUTLASS interleaves them.
    """
    columns, rows = 2 * len(meta), meta.shape[1] // 2
    row, column = torch.arange(rows)[:, None], torch.arange(columns)[None]
    row = row // 64 * 64 + row % 2 * 2 + row % 8 // 4 + row % 4 // 2 * 32 + row % 64 // 8 * 4
    row, column = row.expand(-1, columns), column.expand(rows, -1)
    swap = ((row % 2 == 0) & (column % 2 == 1)).int() - ((row % 2 == 1) & (column % 2 == 0)).int()
    row, column = row + swap, column - swap
    place = column // 2 * rows * 2 + row * 2 + column % 2
    return numbers(meta.flatten()[place.flatten()].view(rows, columns), 4)


def spread(codes: Tensor, pairs: Tensor, empty: int) -> Tensor:
    """Codes [M, N / 2] at the places `pairs` [M, N / 4]; others are `empty`: [M, N]."""
    rows = len(codes)
    dense = torch.full((rows, pairs.shape[1], 4), empty, dtype=torch.uint8, device=codes.device)
    places = torch.stack([pairs & 3, pairs >> 2], -1).long()
    return dense.scatter_(2, places, codes.reshape(rows, -1, 2)).flatten(1)


def _order(bits: int, kind: Kind) -> Tensor:
    """For each place of 1,024 in a run of tiles the code that is stored there."""
    lane = torch.arange(32).view(32, 1, 1, 1)
    step, block = torch.arange(4).view(1, 4, 1, 1), torch.arange(2).view(1, 1, 2, 1)
    if kind.startswith("qqq"):
        row = 4 * (lane % 4) + torch.arange(4)
    else:
        row = 2 * (lane % 4) + torch.tensor([0, 1, 8, 9])
    if kind == "marlin_24":
        column = lane // 4
        order = 16 * row + column // 2 * 256 + 8 * (column % 2) + 4 * block + step
    else:
        order = 16 * row + lane // 4 + 8 * block + 256 * step
    within = _HALVES if kind == "qqq_whole" else _EVEN_FIRST if bits == 4 else [0, 2, 1, 3]
    return order.reshape(-1, len(within))[:, within].flatten()
