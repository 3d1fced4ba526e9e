"""Activations rounded to codes times scales, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_lite.kernels.reference.quantize import (
    SMALLEST_ROW,
    quantize_by_powers,
    quantize_by_scale,
    quantize_rows,
)


@dataclass(frozen=True, slots=True)
class ActivationRounding:
    """How a layer's activations are rounded before its product: to codes times a scale.

    The scale is given, or each token's own, or that of each `group_size` inputs of a token.
    """

    number: torch.dtype  # int8, float8_e4m3fn or float8_e5m2
    group_size: int = 0
    scale: Tensor | None = None  # [1] float32
    # The values >= 0 of a smaller float, in order, in place of those of `number`.
    values: Tensor | None = None
    # Of groups: powers of two, down (e8m0) or up (ue8m0); or 8-bit floats times `scale`.
    scales: Literal["float32", "e8m0", "ue8m0", "float8_e4m3fn"] = "float32"
    # Rows of int8 begin at their least value, rather than lie around zero; or `zero` [1] float32
    # is the code of zero, with `scale`.
    is_shifted: bool = False
    zero: Tensor | None = None


def round_activations(x: Tensor, rounding: ActivationRounding) -> Tensor:
    """The values [T, N] float32 that x [T, N] is rounded to."""
    number, scale, size = rounding.number, rounding.scale, rounding.group_size
    if rounding.is_shifted:
        return _round_shifted(x.float(), scale, rounding.zero)
    if scale is not None and not size:
        return quantize_by_scale(x, scale, number).float() * scale
    num_inputs = x.shape[1]
    x = pad(x, (0, -num_inputs % size)) if size else x
    if rounding.scales in ("float32", "ue8m0") and rounding.values is None:
        quantize = quantize_rows if rounding.scales == "float32" else quantize_by_powers
        codes, scales = quantize(x, number, size)
        groups = codes.float().view(*scales.shape, -1) * scales.unsqueeze(-1)
    else:
        groups = _round_groups(x.float().view(len(x), -1, size), rounding)
    return groups.flatten(1)[:, :num_inputs]


def to_values(x: Tensor, values: Tensor) -> Tensor:
    """Round x to the nearest of `values` >= 0 or their negatives, ties to the even place."""
    middles = (values[1:] + values[:-1]) / 2
    size = x.abs()
    places = torch.bucketize(size, middles)
    is_tie = size == middles[places.clamp(max=len(middles) - 1)]
    places = places + (is_tie & (places % 2 == 1))
    return torch.copysign(values[places.clamp(max=len(values) - 1)], x)


def power_of_two(highest: Tensor, largest: float) -> Tensor:
    """The scale of a group by its highest magnitude (OCP Microscaling Formats, 2023)."""
    exponent = torch.floor(torch.log2(highest)) - torch.floor(torch.log2(torch.tensor(largest)))
    return torch.where(highest > 0, torch.exp2(exponent.clamp(-127, 127)), 1.0)


def _round_groups(groups: Tensor, rounding: ActivationRounding) -> Tensor:
    """Groups [T, G, S] with scales of one byte."""
    values = rounding.values
    largest = float(values[-1]) if values is not None else torch.finfo(rounding.number).max
    highest = groups.abs().amax(-1, keepdim=True)
    if rounding.scales == "float8_e4m3fn":
        whole = torch.ones(1) if rounding.scale is None else rounding.scale
        scales = (highest / largest / whole).clamp(max=448.0).to(torch.float8_e4m3fn).float()
        scales = scales * whole
    elif rounding.scales == "e8m0":
        scales = power_of_two(highest, largest)
    else:
        scales = highest / largest
    codes = torch.where(scales > 0, groups / scales, 0.0)
    if values is not None:
        return to_values(codes, values) * scales
    return codes.clamp(-largest, largest).to(rounding.number).float() * scales


def _round_shifted(x: Tensor, scale: Tensor | None, zero: Tensor | None) -> Tensor:
    if scale is None or zero is None:
        low, high = x.aminmax(dim=1, keepdim=True)
        span = high.clamp(min=0) - low.clamp(max=0)
        is_usable = (span > SMALLEST_ROW) & span.isfinite()
        factor = torch.where(is_usable, torch.tensor(255.0) / span, 0.0)
        zero = (-128 - torch.where(is_usable, low.clamp(max=0) * factor, 0.0)).round()
        steps, scale = x * factor, span / 255
    else:
        steps = x / scale
    return steps.clamp(-128 - zero, 127 - zero).round() * scale
