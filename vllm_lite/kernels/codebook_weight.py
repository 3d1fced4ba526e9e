"""Weights as indices of vectors in books, with signs and scales, for GGUF's IQ types and AQLM.

The planes keep every value exact and lie as a GPU's product reads them: outputs side by side.
Knows no kernel, no file and no layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_lite.kernels.grouped_weight import GroupedWeight


@dataclass(frozen=True, slots=True)
class CodebookWeight:
    """A weight [M, N]: the sum over books of their vectors of V values, times signs and scales.

    A scale is that of N / S inputs, times 2 * odd + 1 of `group_size` inputs where there are such.
    V is 4 or 8; an index has 8 bits and `high_bits` more, 0, 1, 2, 4 or 8.
    """

    codes: Tensor  # [B, N / V, M] uint8: the lowest 8 bits of indices
    high_codes: Tensor | None  # [B, N / V * high_bits / 8, M] uint8, those above, lowest first
    signs: Tensor | None  # [N / 8, M] uint8: bit i is 1 where value i of eight is negative
    odds: Tensor | None  # [N / (2 * group_size), M] uint8: two of 4 bits, the first the lower
    scales: Tensor  # [S, M] floats
    books: Tensor  # [B, 2**bits, V] floats
    group_size: int
    num_outputs: int
    num_inputs: int

    @property
    def nbytes(self) -> int:
        """Bytes of all planes, but the books."""
        planes = (self.codes, self.high_codes, self.signs, self.odds, self.scales)
        return sum(plane.nbytes for plane in planes if plane is not None)

    @property
    def kind(self) -> str:
        """A name for the log."""
        return "codebooks"

    @property
    def vector(self) -> int:
        """Values that an index stands for."""
        return self.books.shape[2]

    @property
    def high_bits(self) -> int:
        """Bits of an index above the eighth."""
        high = self.high_codes
        return 0 if high is None else 8 * high.shape[1] // self.codes.shape[1]

    @property
    def permutation(self) -> None:
        """Which input a column multiplies: they are in order."""
        return None

    def of_outputs(self, rows: Tensor) -> CodebookWeight:
        """The weight of the outputs `rows` [K] int64 alone."""

        def taken(plane: Tensor | None) -> Tensor | None:
            return None if plane is None else plane[..., rows]

        return replace(
            self,
            codes=self.codes[..., rows],
            high_codes=taken(self.high_codes),
            signs=taken(self.signs),
            odds=taken(self.odds),
            scales=self.scales[..., rows],
            num_outputs=len(rows),
        )


# What `pack_grouped` takes.
PackedWeight = GroupedWeight | CodebookWeight


def expand_books(weight: CodebookWeight) -> Tensor:
    """All values [M, N] float32."""
    indices = weight.codes.int()
    if weight.high_codes is not None:
        indices = indices | bits_of(weight.high_codes, weight.high_bits, 1).int() << 8
    found = zip(weight.books.float(), indices, strict=True)
    vectors = sum((book[of_book] for book, of_book in found), torch.zeros(()))
    values = vectors.permute(1, 0, 2).flatten(1)
    if weight.signs is not None:
        values = torch.where(bits_of(weight.signs, 1, 0).T == 1, -values, values)
    scales = weight.scales.float()
    if weight.odds is not None:
        odds = 2 * bits_of(weight.odds, 4, 0).float() + 1
        scales = odds * scales.repeat_interleave(len(odds) // len(scales), dim=0)
    return values * scales.T.repeat_interleave(weight.num_inputs // len(scales), dim=1)


def pack_bits(numbers: Tensor, bits: int, dim: int) -> Tensor:
    """Pack uint8 numbers below 2**bits along a dimension, the first in the lowest bits."""
    places = torch.arange(numbers.shape[dim], device=numbers.device)
    per_byte = 8 // bits
    packed = numbers.index_select(dim, places[::per_byte]).clone()
    for i in range(1, per_byte):
        packed |= numbers.index_select(dim, places[i::per_byte]) << i * bits
    return packed


def bits_of(plane: Tensor, bits: int, dim: int) -> Tensor:
    """The numbers that `pack_bits` packed."""
    shifts = range(0, 8, bits)
    parts = [(plane >> shift) & (2**bits - 1) for shift in shifts]
    return torch.stack(parts, dim + 1).flatten(dim, dim + 1)
