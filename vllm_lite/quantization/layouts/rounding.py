"""From plain weights to the tensors of a form of codes: each code is the value nearest to a weight.

The largest magnitude of a block becomes the largest value; scales that are powers of two are those
of OCP Microscaling Formats (2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_lite.config.quantized.schemes import Number, StoredCodes
from vllm_lite.kernels.pieces import rows_at_once
from vllm_lite.quantization.ggml_blocks import divided
from vllm_lite.quantization.layouts.numbers import values_of

_CACHED_VALUES = 1 << 16
_LARGEST: dict[Number, float] = {
    "int": 127.0,
    "float8_e4m3fn": 448.0,
    "float4_e2m1": 6.0,
    "nf4": 1.0,
    "fp4": 1.0,
}
_BYTES: dict[Number, torch.dtype] = {"int": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn}
# The exponents of the largest values.
_EXPONENTS: dict[Number, int] = {"float8_e4m3fn": 8, "float4_e2m1": 2}
_BIAS = 127
_LARGEST_SCALE = 448.0
# Equal parts of the range of nf4, of which none has more than one middle between two values.
_PARTS = 64


def encode(weight: Tensor, form: StoredCodes) -> dict[str, Tensor]:
    """The tensors of a weight [M, N] as CodesLayout reads them, codes one to a byte."""
    num_outputs, num_inputs = weight.shape
    largest = torch.cat([blocks.abs().amax((1, 3)) for blocks in _blocks(weight, form)])
    if form.block[0] is None:
        largest = largest.amax().expand(num_outputs, 1)
    stored, worth = _scales(largest, form)
    codes = torch.empty_like(weight, dtype=_BYTES.get(form.number, torch.uint8))
    first = done = 0
    for blocks in _blocks(weight, form):
        scales = worth[first : first + len(blocks), None, :, None]
        first += len(blocks)
        found = _nearest(divided(blocks, scales), form.number).flatten(2).flatten(0, 1)
        rows = codes[done : done + len(found)]
        done += len(rows)
        rows.copy_(found[: len(rows), :num_inputs])
    return {form.weight: codes, **stored}


def _blocks(weight: Tensor, form: StoredCodes) -> Iterator[Tensor]:
    """A few rows of blocks at a time, [R, rows, C, columns] float32; what is missing is zero."""
    num_inputs = weight.shape[1]
    rows, columns = form.block[0] or 1, form.block[1] or num_inputs
    count = rows_at_once(num_inputs * rows, weight.device, _CACHED_VALUES) * rows
    for part in torch.split(weight, count):
        whole, more = part.float(), (0, -num_inputs % columns, 0, -len(part) % rows)
        whole = pad(whole, more) if any(more) else whole
        yield whole.reshape(-1, rows, whole.shape[1] // columns, columns)


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
    """The codes of the values nearest to ratios; of a tie, the even one where it counts.

    Codes that are numbers are still float32. A search among the values by torch.bucketize takes
    ten times as long; fp4, which only settings of a plain checkpoint ask for, has no other.
    """
    if number == "int":
        return ratios.round_().clamp_(-127, 127)
    if number == "float8_e4m3fn":
        return ratios.clamp_(-448, 448)
    if number == "nf4":
        parts = _parts_of(ratios)
        codes, middles = (each.index_select(0, parts) for each in _steps(ratios.device))
        return (codes + (ratios.flatten() > middles)).view(ratios.shape)
    if number == "fp4":
        ordered, codes = values_of(number).to(ratios.device).sort(stable=True)
        return codes.byte()[torch.bucketize(ratios, (ordered[1:] + ordered[:-1]) / 2)]
    # Values are halves up to 2, whole up to 4 and even up to 6: the steps get wider.
    sizes = ratios.abs()
    codes = (sizes * 2).round_()
    torch.minimum(codes, sizes.round().add_(2), out=codes)
    torch.minimum(codes, (sizes / 2).round_().add_(4), out=codes)
    signs = ratios.view(torch.int32) >> 28 & 8
    return codes.clamp_(max=7).to(torch.int8).view(torch.uint8) | signs.byte()


def _parts_of(ratios: Tensor) -> Tensor:
    """The one of _PARTS from -1 to 1 that each number is in."""
    half = _PARTS // 2
    return (ratios.flatten() * half).add_(half).int().clamp_(0, _PARTS - 1)


@cache
def _steps(device: torch.device) -> tuple[Tensor, Tensor]:
    """The code with which each part begins, and the number above which the next one is nearer."""
    values = values_of("nf4")
    middles = (values[1:] + values[:-1]) / 2
    parts = _parts_of(middles)
    ends = torch.full((_PARTS,), torch.inf, device="cpu")
    ends[parts.long()] = middles
    codes = torch.searchsorted(parts, torch.arange(_PARTS, dtype=torch.int32, device="cpu"))
    return codes.byte().to(device), ends.to(device)
