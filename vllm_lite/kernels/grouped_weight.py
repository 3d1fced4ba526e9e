"""Weights as small integers with a scale for each group of inputs, in one layout for all formats.

GGUF's blocks, AWQ and GPTQ become the planes of a `GroupedWeight`, which keep every value
exact and lie as a matrix product reads them: chunks of 64 inputs, in them all outputs, in them
the chunk's codes. Knows no kernel, no file and no layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 64
# Inputs that share a super-scale.
SUPER_GROUP = 256


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A weight [M, N]: scale * (code - offset - zero) - minimum, by groups of `group_size` inputs.

    Codes have 4, 5, 6 or 8 bits. G is N / group_size, C is N / 64 rounded up. With super_scales,
    scales and minimums are small integers, multiplied by super_scales and super_minimums.
    """

    codes: Tensor  # [C, M, 32] uint8: inputs i and i + 32 of a chunk share a byte; or [C, M, 64]
    high_codes: Tensor | None  # [C, M, 8 * bits] uint8: the fifth and sixth bits
    scales: Tensor  # [G, M] floats; or int8 or uint8
    minimums: Tensor | None  # [G, M], as scales
    zeros: Tensor | None  # [G, M] uint8
    super_scales: Tensor | None  # [N / 256, M] float16, N a multiple of 256
    super_minimums: Tensor | None  # as super_scales
    permutation: Tensor | None  # [N] int64: which input a column of the weight multiplies
    bits: int
    offset: int
    group_size: int
    num_outputs: int
    num_inputs: int

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes() if plane is not None)

    def planes(self) -> tuple[Tensor | None, ...]:
        """All tensors, in the order of the fields."""
        scaling = (self.scales, self.minimums, self.zeros, self.super_scales, self.super_minimums)
        return (self.codes, self.high_codes, *scaling, self.permutation)


def make_grouped(
    codes: Tensor,
    scales: Tensor,
    bits: int,
    offset: int = 0,
    *,
    minimums: Tensor | None = None,
    zeros: Tensor | None = None,
    super_scales: Tensor | None = None,
    super_minimums: Tensor | None = None,
    permutation: Tensor | None = None,
) -> GroupedWeight:
    """Make a weight of codes [M, N] uint8 below 2**bits; other planes are [M, G] or [M, S].

    A group has 16, 32, or any multiple of 32 inputs.
    """
    num_outputs, num_inputs = codes.shape
    group_size = num_inputs // scales.shape[1]
    if scales.shape[1] * group_size != num_inputs or (group_size != 16 and group_size % 32):
        raise ValueError(f"{num_inputs} inputs in {scales.shape[1]} groups")
    if super_scales is not None and super_scales.shape[1] * SUPER_GROUP != num_inputs:
        raise ValueError(f"{num_inputs} inputs in {super_scales.shape[1]} groups of groups")
    low, high = _planes(codes, bits)
    return GroupedWeight(
        codes=low,
        high_codes=high,
        scales=scales.T.contiguous(),
        minimums=_turned(minimums),
        zeros=_turned(zeros),
        super_scales=_turned(super_scales),
        super_minimums=_turned(super_minimums),
        permutation=permutation,
        bits=bits,
        offset=offset,
        group_size=group_size,
        num_outputs=num_outputs,
        num_inputs=num_inputs,
    )


def expand(weight: GroupedWeight) -> Tensor:
    """All values [M, N] float32, in the original order of inputs."""
    codes = integers(weight).float()
    scales = _by_input(weight.scales, weight.group_size)
    if weight.super_scales is not None:
        scales = scales * _by_input(weight.super_scales, SUPER_GROUP)
    values = codes * scales
    if weight.minimums is not None:
        minimums = _by_input(weight.minimums, weight.group_size)
        if weight.super_minimums is not None:
            minimums = minimums * _by_input(weight.super_minimums, SUPER_GROUP)
        values -= minimums
    if weight.permutation is not None:
        values = values[:, weight.permutation.argsort()]
    return values


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> GroupedWeight:
    """Read AWQ's 4-bit storage: qweight [N, M / 8] and qzeros [G, M / 8] int32, scales [G, M].

    A word holds eight outputs in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first.
    """
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    codes = _numbers(qweight, 4)[..., order].flatten(-2)
    zeros = _numbers(qzeros, 4)[..., order].flatten(-2)
    return make_grouped(codes.T, scales.T, 4, zeros=zeros.T)


def from_gptq(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor | None = None,
    bits: int = 4,
    *,
    zeros_are_less_by_one: bool = True,
) -> GroupedWeight:
    """Read GPTQ's storage: qweight [N / W, M] and qzeros [G, M / W] int32, scales [G, M].

    A word of qweight holds W = 32 / bits inputs; bits are 4 or 8. Zeros are stored minus one,
    except in the second format. g_idx [N] is each input's group; if groups are not in order
    (act-order), inputs are sorted by group. A g_idx of zeros is ignored.
    """
    codes = _numbers(qweight, bits).transpose(1, 2).flatten(0, 1)
    zeros = _numbers(qzeros, bits).flatten(-2)
    group_size = len(codes) // len(scales)
    permutation = None
    if g_idx is not None and bool(g_idx.any()):
        in_order = torch.arange(len(codes), device=g_idx.device) // group_size
        if not torch.equal(g_idx.long(), in_order):
            permutation = g_idx.argsort(stable=True)
            if not torch.equal(g_idx[permutation].long(), in_order):
                raise ValueError("g_idx does not name each group as often as the others")
            codes = codes[permutation]
    # Added as an offset: a zero point of 256 would not fit a byte.
    offset = int(zeros_are_less_by_one)
    return make_grouped(codes.T, scales.T, bits, offset, zeros=zeros.T, permutation=permutation)


def _turned(plane: Tensor | None) -> Tensor | None:
    return None if plane is None else plane.T.contiguous()


def _numbers(words: Tensor, bits: int) -> Tensor:
    """Unpack int32 words [...] to [..., 32 / bits] uint8, lowest bits first."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    numbers: Tensor = (words[..., None] >> shifts) & (2**bits - 1)
    return numbers.to(torch.uint8)


def _planes(codes: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """Split codes [M, N] uint8 into the planes `codes` and `high_codes`."""
    num_outputs, num_inputs = codes.shape
    chunks = -(-num_inputs // CHUNK)
    padded = torch.nn.functional.pad(codes, (0, chunks * CHUNK - num_inputs))
    padded = padded.view(num_outputs, chunks, CHUNK).transpose(0, 1)
    if bits == 8:
        return padded.contiguous(), None
    first, second = torch.split(padded, CHUNK // 2, dim=-1)
    low = (first & 15) | (second & 15) << 4
    if bits == 4:
        return low.contiguous(), None
    extra = bits - 4
    high = torch.zeros(chunks, num_outputs, 8 * extra, dtype=torch.uint8, device=codes.device)
    for half, part in enumerate((first, second)):
        for place, piece in enumerate(torch.split(part >> 4, 8 * extra, dim=-1)):
            high |= piece << ((2 * place + half) * extra)
    return low.contiguous(), high


def integers(weight: GroupedWeight) -> Tensor:
    """Codes minus offset and zeros, [M, N] int32, in the order of the planes."""
    numbers: Tensor = _codes(weight) - weight.offset
    if weight.zeros is not None:
        numbers -= weight.zeros.int().T.repeat_interleave(weight.group_size, dim=1)
    return numbers


def _codes(weight: GroupedWeight) -> Tensor:
    """All codes [M, N] int32, as passed to `make_grouped`."""
    low = weight.codes
    if weight.bits < 8:
        halves = [low & 15, low >> 4]
        if weight.high_codes is not None:
            extra = weight.bits - 4
            mask = 2**extra - 1
            for half in range(2):
                pieces = [
                    (weight.high_codes >> ((2 * place + half) * extra)) & mask
                    for place in range(4 // extra)
                ]
                halves[half] = halves[half] | torch.cat(pieces, dim=-1) << 4
        low = torch.cat(halves, dim=-1)
    flat = low.transpose(0, 1).flatten(1)
    return flat[:, : weight.num_inputs].int()


def _by_input(plane: Tensor, group_size: int) -> Tensor:
    """Expand a plane [G, M] to float32 [M, G * group_size]."""
    return plane.float().T.repeat_interleave(group_size, dim=1)
