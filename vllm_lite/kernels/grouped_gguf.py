"""Conversion of GGUF's quantised storage to `GroupedWeight` or `CodebookWeight`, exact to the bit.

Layouts of the blocks: the GGUF format's documents. Rows are made of whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.gguf_codebooks import BOOK_FORMATS, from_books
from vllm_lite.kernels.grouped_weight import SUPER_GROUP, make_grouped

# The values of IQ4_NL's sixteen codes, before their scale.
_NONLINEAR = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
# Floats of four bits, doubled.
_FLOAT4 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Contents of blocks [M, B, bytes]: codes [M, B, elements], all else [M, B, numbers]."""

    codes: Tensor
    scales: Tensor
    bits: int
    offset: int = 0
    minimums: Tensor | None = None
    super_scales: Tensor | None = None
    super_minimums: Tensor | None = None
    table: list[int] | None = None


def from_gguf(raw: Tensor, ggml_type: int, num_outputs: int) -> PackedWeight:
    """The weight with `num_outputs` rows of blocks in `raw`; KeyError for an unsupported type."""
    if ggml_type in BOOK_FORMATS:
        return from_books(raw, ggml_type, num_outputs)
    _, block_bytes, read = _FORMATS[ggml_type]
    parts = read(raw.view(torch.uint8).view(num_outputs, -1, block_bytes))
    return make_grouped(
        parts.codes.flatten(1),
        parts.scales.flatten(1),
        parts.bits,
        parts.offset,
        minimums=_flat(parts.minimums),
        super_scales=_flat(parts.super_scales),
        super_minimums=_flat(parts.super_minimums),
        table=None if parts.table is None else torch.tensor(parts.table, device=raw.device),
    )


def is_supported(ggml_type: int) -> bool:
    """Whether `from_gguf` reads a storage type, by its number in GGUF files."""
    return ggml_type in _FORMATS or ggml_type in BOOK_FORMATS


def block_of(ggml_type: int) -> tuple[int, int]:
    """Number of values and of bytes in a block of a supported type."""
    values, size, _ = (_FORMATS if ggml_type in _FORMATS else BOOK_FORMATS)[ggml_type]
    return values, size


def _flat(part: Tensor | None) -> Tensor | None:
    return None if part is None else part.flatten(1)


def _halves(blocks: Tensor, at: int) -> Tensor:
    """The float16 number at a byte of each block, [M, B, 1]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)


def _nibbles(low: Tensor) -> Tensor:
    """Bytes [..., n] as [..., 2n]: all their lower halves, then all their upper ones."""
    return torch.cat([low & 15, low >> 4], dim=-1)


def _bits(words: Tensor, shifts: list[int], mask: int) -> Tensor:
    """Bytes [..., n] as [..., len(shifts) * n]: the masked bits at one shift after another."""
    return torch.cat([(words >> shift) & mask for shift in shifts], dim=-1)


def _simple(has_minimum: bool, has_fifth_bit: bool) -> Callable[[Tensor], _Parts]:
    """Formats 4_0, 4_1, 5_0 and 5_1: 32 values with one scale."""
    high_at = 4 if has_minimum else 2
    low_at = high_at + (4 if has_fifth_bit else 0)

    def read(blocks: Tensor) -> _Parts:
        codes = _nibbles(blocks[..., low_at:])
        if has_fifth_bit:
            shifts = torch.arange(8, device=blocks.device, dtype=torch.uint8)
            high = (blocks[..., high_at:low_at, None] >> shifts) & 1
            codes = codes | high.flatten(-2) << 4
        bits = 5 if has_fifth_bit else 4
        if has_minimum:
            return _Parts(codes, _halves(blocks, 0), bits, minimums=-_halves(blocks, 2))
        return _Parts(codes, _halves(blocks, 0), bits, offset=2 ** (bits - 1))

    return read


def _q8_0(blocks: Tensor) -> _Parts:
    return _Parts(blocks[..., 2:] ^ 128, _halves(blocks, 0), 8, offset=128)


def _iq4_nl(blocks: Tensor) -> _Parts:
    return _Parts(_nibbles(blocks[..., 2:]), _halves(blocks, 0), 4, table=_NONLINEAR)


def _iq4_xs(blocks: Tensor) -> _Parts:
    codes = [_nibbles(part) for part in torch.split(blocks[..., 8:], 16, dim=-1)]
    low = torch.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).flatten(-2)
    high = torch.stack([(blocks[..., 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], -1).flatten(-2)
    scales = (low | high << 4).to(torch.int8) - 32
    codes_of_all = torch.cat(codes, dim=-1)
    return _Parts(codes_of_all, scales, 4, super_scales=_halves(blocks, 0), table=_NONLINEAR)


def _mxfp4(blocks: Tensor) -> _Parts:
    exponents = blocks[..., :1].int() - 128
    powers = torch.ldexp(torch.ones_like(exponents).float(), exponents).bfloat16()
    return _Parts(_nibbles(blocks[..., 1:]), powers, 4, table=_FLOAT4)


def _nvfp4(blocks: Tensor) -> _Parts:
    halves = [_nibbles(part) for part in torch.split(blocks[..., 4:], 8, dim=-1)]
    bits = blocks[..., :4].int()
    # e4m3 without its sign and its numbers that are none, halved.
    exponents, fractions = bits >> 3 & 15, bits & 7
    normal = torch.ldexp(8.0 + fractions, exponents - 11)
    scales = torch.where(exponents == 0, torch.ldexp(fractions.float(), bits * 0 - 10), normal)
    scales = scales.masked_fill(bits == 0x7F, 0.0).bfloat16()
    return _Parts(torch.cat(halves, dim=-1), scales, 4, table=_FLOAT4)


def _tq2_0(blocks: Tensor) -> _Parts:
    codes = [_bits(half, [0, 2, 4, 6], 3) for half in torch.split(blocks[..., :64], 32, dim=-1)]
    return _Parts(torch.cat(codes, dim=-1), _halves(blocks, 64), 2, offset=1)


def _q2_0(blocks: Tensor) -> _Parts:
    codes = torch.stack([blocks[..., 2:] >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    return _Parts(codes.flatten(-2), _halves(blocks, 0), 2, offset=1)


def _tq1_0(blocks: Tensor) -> _Parts:
    """Digits of base 3, which take two bits here."""
    runs = torch.split(blocks[..., :52], [32, 16, 4], dim=-1)
    digits = [
        (run * power).int() * 3 >> 8
        for run, count in zip(runs, (5, 5, 4), strict=True)
        for power in (1, 3, 9, 27, 81)[:count]
    ]
    return _Parts(torch.cat(digits, dim=-1).to(torch.uint8), _halves(blocks, 52), 2, offset=1)


def _q2_k(blocks: Tensor) -> _Parts:
    scales = blocks[..., :16]
    codes = [_bits(half, [0, 2, 4, 6], 3) for half in torch.split(blocks[..., 16:80], 32, dim=-1)]
    return _Parts(
        torch.cat(codes, dim=-1),
        scales & 15,
        2,
        minimums=scales >> 4,
        super_scales=_halves(blocks, 80),
        super_minimums=_halves(blocks, 82),
    )


def _q3_k(blocks: Tensor) -> _Parts:
    low = [_bits(half, [0, 2, 4, 6], 3) for half in torch.split(blocks[..., 32:96], 32, dim=-1)]
    codes = torch.cat(low, dim=-1) | _bits(blocks[..., :32], list(range(8)), 1) << 2
    scales = _nibbles(blocks[..., 96:104]) | _bits(blocks[..., 104:108], [0, 2, 4, 6], 3) << 4
    return _Parts(codes, scales.to(torch.int8) - 32, 3, offset=4, super_scales=_halves(blocks, 108))


def _scales_of_k(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and minimums, [M, B, 8] uint8, of twelve bytes."""
    first, second, rest = torch.split(packed, 4, dim=-1)
    scales = torch.cat([first & 63, (rest & 15) | (first >> 6) << 4], dim=-1)
    minimums = torch.cat([second & 63, (rest >> 4) | (second >> 6) << 4], dim=-1)
    return scales, minimums


def _q4_or_5_k(bits: int) -> Callable[[Tensor], _Parts]:
    low_at = 16 if bits == 4 else 48

    def read(blocks: Tensor) -> _Parts:
        low = [_nibbles(chunk) for chunk in torch.split(blocks[..., low_at:], 32, dim=-1)]
        codes = torch.cat(low, dim=-1)
        if bits == 5:
            codes = codes | _bits(blocks[..., 16:48], list(range(8)), 1) << 4
        scales, minimums = _scales_of_k(blocks[..., 4:16])
        return _Parts(
            codes,
            scales,
            bits,
            minimums=minimums,
            super_scales=_halves(blocks, 0),
            super_minimums=_halves(blocks, 2),
        )

    return read


def _q6_k(blocks: Tensor) -> _Parts:
    low = [_nibbles(half) for half in torch.split(blocks[..., :128], 64, dim=-1)]
    high = [_bits(half, [0, 2, 4, 6], 3) for half in torch.split(blocks[..., 128:192], 32, dim=-1)]
    return _Parts(
        torch.cat(low, dim=-1) | torch.cat(high, dim=-1) << 4,
        blocks[..., 192:208].contiguous().view(torch.int8),
        6,
        offset=32,
        super_scales=_halves(blocks, 208),
    )


# By GGUF type number: values and bytes of a block, and its reader.
_FORMATS: dict[int, tuple[int, int, Callable[[Tensor], _Parts]]] = {
    2: (32, 18, _simple(False, False)),  # Q4_0
    3: (32, 20, _simple(True, False)),  # Q4_1
    6: (32, 22, _simple(False, True)),  # Q5_0
    7: (32, 24, _simple(True, True)),  # Q5_1
    8: (32, 34, _q8_0),
    10: (SUPER_GROUP, 84, _q2_k),
    11: (SUPER_GROUP, 110, _q3_k),
    12: (SUPER_GROUP, 144, _q4_or_5_k(4)),
    13: (SUPER_GROUP, 176, _q4_or_5_k(5)),
    14: (SUPER_GROUP, 210, _q6_k),
    20: (32, 18, _iq4_nl),
    23: (SUPER_GROUP, 136, _iq4_xs),
    34: (SUPER_GROUP, 54, _tq1_0),
    35: (SUPER_GROUP, 66, _tq2_0),
    39: (32, 17, _mxfp4),
    40: (64, 36, _nvfp4),
    42: (64, 18, _q2_0),
}
