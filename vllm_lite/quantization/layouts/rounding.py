"""From plain weights to the tensors of a form of codes: each code is the value nearest to a weight.

The largest magnitude of a block becomes the largest value; scales that are powers of two are those
of OCP Microscaling Formats (2023).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_lite.config.quantized.schemes import Number, StoredCodes
from vllm_lite.kernels.pieces import rows_at_once
from vllm_lite.quantization.layouts.numbers import values_of

_CACHED_VALUES = 1 << 18
_LARGEST: dict[Number, float] = {
    "int": 127.0,
    "float8_e4m3fn": 448.0,
    "float4_e2m1": 6.0,
    "nf4": 1.0,
    "fp4": 1.0,
}
# The exponents of the largest values.
_EXPONENTS: dict[Number, int] = {"float8_e4m3fn": 8, "float4_e2m1": 2}
_BIAS = 127
_LARGEST_SCALE = 448.0


def encode(weight: Tensor, form: StoredCodes) -> dict[str, Tensor]:
    """The tensors of a weight [M, N] as CodesLayout reads them, codes one to a byte."""
    num_outputs, num_inputs = weight.shape
    largest = torch.cat([blocks.abs().amax((1, 3)) for blocks in _blocks(weight, form)])
    if form.block[0] is None:
        largest = largest.amax().expand(num_outputs, 1)
    stored, worth = _scales(largest, form)
    codes, first = [], 0
    for blocks in _blocks(weight, form):
        scales = worth[first : first + len(blocks), None, :, None]
        first += len(blocks)
        ratios = torch.where(scales == 0, 0.0, blocks / scales)
        codes.append(_nearest(ratios.flatten(2).flatten(0, 1), form.number))
    return {form.weight: torch.cat(codes)[:num_outputs, :num_inputs].contiguous(), **stored}


def _blocks(weight: Tensor, form: StoredCodes) -> Iterator[Tensor]:
    """A few rows of blocks at a time, [R, rows, C, columns] float32; what is missing is zero."""
    num_inputs = weight.shape[1]
    rows, columns = form.block[0] or 1, form.block[1] or num_inputs
    count = rows_at_once(num_inputs * rows, weight.device, _CACHED_VALUES) * rows
    for part in torch.split(weight, count):
        whole = pad(part.float(), (0, -num_inputs % columns, 0, -len(part) % rows))
        yield whole.view(-1, rows, whole.shape[1] // columns, columns)


def _scales(largest: Tensor, form: StoredCodes) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of scales for largest magnitudes [R, C], and what each scale is worth."""
    top = _LARGEST[form.number]
    if form.scale_number == "e8m0":
        exponents = torch.frexp(largest).exponent - 1 - _EXPONENTS[form.number]
        exponents = torch.where(largest > 0, exponents, 0).clamp(-_BIAS, _BIAS)
        worth = torch.ldexp(torch.ones_like(largest), exponents)
        return {form.scale: (exponents + _BIAS).to(torch.uint8)}, worth
    if form.super_scale:
        factor = largest.amax() / (_LARGEST_SCALE * top)
        ratios = torch.where(factor > 0, largest / top / factor, 0.0)
        scales = ratios.clamp(max=_LARGEST_SCALE).to(torch.float8_e4m3fn)
        stored = {form.scale: scales, form.super_scale: factor.repeat(len(largest))}
        return stored, scales.float() * factor
    scales = largest / top
    return {form.scale: scales if form.block[0] else scales.flatten()}, scales


def _nearest(ratios: Tensor, number: Number) -> Tensor:
    """The codes of the values nearest to ratios [M, N]; of a tie, the even one where it counts."""
    if number == "int":
        return ratios.round_().clamp_(-127, 127).to(torch.int8)
    if number == "float8_e4m3fn":
        return ratios.clamp_(-448, 448).to(torch.float8_e4m3fn)
    values = values_of(number).to(ratios.device)
    if number in ("nf4", "fp4"):
        ordered, codes = values.sort(stable=True)
        return codes.byte()[torch.bucketize(ratios, (ordered[1:] + ordered[:-1]) / 2)]
    positive = values[: len(values) // 2]
    ends = (positive[1:] + positive[:-1]) / 2
    # A value at an end is of the lower code, except where that is odd.
    ends[1::2] = torch.nextafter(ends[1::2], ends.new_zeros(()))
    codes = torch.bucketize(ratios.abs(), ends, out_int32=True).byte()
    return codes | ratios.signbit().byte() << 3
