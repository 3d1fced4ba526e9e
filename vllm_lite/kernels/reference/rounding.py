"""Activations rounded to codes times scales, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_lite.kernels.reference.quantize import (
    LARGEST,
    SMALLEST_ROW,
    power_above,
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
    scale: Tensor | None = None  # [1] float32; or [T, 1], each row's
    # The values >= 0 of a smaller float, in order, in place of those of `number`.
    values: Tensor | None = None
    # Of groups: powers of two, down (e8m0) or up (ue8m0), or by the spread of values up to 6; or
    # 8-bit floats times `scale`.
    scales: Literal["float32", "e8m0", "ue8m0", "float8_e4m3fn", "spread"] = "float32"
    # Rows or groups of int8 begin at their least value, rather than lie around zero; or `zero` [1]
    # float32 is the code of zero, with `scale` and as many.
    is_shifted: bool = False
    zero: Tensor | None = None
    # Magnitudes beyond it are cut off first; 0: none are.
    largest: float = 0.0

    def of_experts(self, experts: Tensor) -> ActivationRounding:
        """That of rows of these experts [T], from one that `join_roundings` made."""
        scale, zero = (None if each is None else each[experts] for each in (self.scale, self.zero))
        return replace(self, scale=scale, zero=zero)


def join_roundings(roundings: Sequence[ActivationRounding | None]) -> ActivationRounding | None:
    """The rounding of E experts, whose scale and zero are theirs: [E, 1] each.

    Raises ValueError if they differ in more than these.
    """
    held = [rounding for rounding in roundings if rounding is not None]
    if not held:
        return None
    if len(held) < len(roundings) or len({_form_of(rounding) for rounding in held}) > 1:
        raise ValueError("experts must round what they read alike")
    scales = [rounding.scale for rounding in held if rounding.scale is not None]
    zeros = [rounding.zero for rounding in held if rounding.zero is not None]
    scale, zero = (torch.stack(each) if each else None for each in (scales, zeros))
    return replace(held[0], scale=scale, zero=zero)


def _form_of(rounding: ActivationRounding) -> tuple[object, ...]:
    values = None if rounding.values is None else tuple(rounding.values.tolist())
    has = (rounding.scale is not None, rounding.zero is not None)
    by = (rounding.number, rounding.group_size, rounding.scales, rounding.is_shifted)
    return (*by, values, rounding.largest, *has)


def round_activations(
    x: Tensor,
    rounding: ActivationRounding,
    by_rows: Callable[..., tuple[Tensor, Tensor]] = quantize_rows,
) -> Tensor:
    """The values [T, N] float32 that x [T, N] is rounded to; `by_rows` may be a GPU's operation."""
    number, scale, size = rounding.number, rounding.scale, rounding.group_size
    if rounding.largest:
        x = x.clamp(-rounding.largest, rounding.largest)
    if scale is not None and not size and not rounding.is_shifted:
        return quantize_by_scale(x, scale, number).float() * scale
    num_inputs = x.shape[1]
    x = pad(x, (0, -num_inputs % size)) if size else x
    if rounding.is_shifted:
        groups = torch.unflatten(x.float(), 1, (-1, size or num_inputs))
        groups = _round_shifted(groups, scale, rounding.zero)
    elif rounding.scales in ("float32", "ue8m0") and rounding.values is None:
        quantize = by_rows if rounding.scales == "float32" else quantize_by_powers
        codes, scales = quantize(x, number, size)
        groups = torch.unflatten(codes.float(), 1, (scales.shape[1], -1)) * scales.unsqueeze(-1)
    else:
        groups = _round_groups(torch.unflatten(x.float(), 1, (-1, size)), rounding)
    return groups.flatten(1)[:, :num_inputs]


def to_values(x: Tensor, values: Tensor) -> Tensor:
    """Round x to the nearest of `values` >= 0 or their negatives, ties to the even place."""
    middles = (values[1:] + values[:-1]) / 2
    # A tie of an odd place goes on to the next.
    middles[1::2] = torch.nextafter(middles[1::2], torch.zeros_like(middles[1::2]))
    places = torch.bucketize(x.abs(), middles)
    return torch.copysign(torch.take(values, places), x)


def power_of_two(highest: Tensor, largest: Tensor) -> Tensor:
    """The scale of a group by its highest magnitude (OCP Microscaling Formats, 2023)."""
    # Not by logarithms, which round up just below a power.
    exponent = torch.frexp(highest).exponent - torch.frexp(largest).exponent
    exponent = torch.where(highest.isinf(), 127, exponent)
    return torch.where(highest > 0, torch.exp2(exponent.clamp(-127, 127)), 1.0)


def scale_by_spread(groups: Tensor) -> Tensor:
    """Scales of values up to 6: of a normal distribution, those of the least squared error.

    (QuEST, Panferov et al., 2025.)
    """
    variance = groups.square().mean(-1, keepdim=True) - groups.mean(-1, keepdim=True).square()
    return 2.92247856 / 6 * variance.clamp(min=0).sqrt() + 1e-8


def _round_groups(groups: Tensor, rounding: ActivationRounding) -> Tensor:
    """Groups [T, G, S] with scales of one byte."""
    values = rounding.values
    limit = LARGEST[rounding.number]
    # Of values no number of Python's, for which a GPU would have to wait.
    largest = torch.tensor(limit) if values is None else values[-1]
    highest = groups.abs().amax(-1, keepdim=True)
    if rounding.scales == "float8_e4m3fn":
        whole = 1.0 if rounding.scale is None else rounding.scale.view(-1, 1, 1)
        scales = (highest / largest / whole).clamp(max=448.0).to(torch.float8_e4m3fn).float()
        scales = scales * whole
    elif rounding.scales == "e8m0":
        scales = power_of_two(highest, largest)
    elif rounding.scales == "spread":
        scales = power_of_two(scale_by_spread(groups), torch.ones(()))
    else:
        scales = highest / largest
        scales = power_above(scales) if rounding.scales == "ue8m0" else scales
    codes = torch.where(scales > 0, groups / scales, 0.0)
    if values is not None:
        return to_values(codes, values) * scales
    return codes.clamp(-limit, limit).to(rounding.number).float() * scales


def _round_shifted(x: Tensor, scale: Tensor | None, zero: Tensor | None) -> Tensor:
    """Groups [T, G, S]."""
    if scale is None or zero is None:
        low, high = x.aminmax(dim=-1, keepdim=True)
        span = high.clamp(min=0) - low.clamp(max=0)
        is_usable = (span > SMALLEST_ROW) & span.isfinite()
        factor = torch.where(is_usable, torch.tensor(255.0) / span, 0.0)
        zero = (-128 - torch.where(is_usable, low.clamp(max=0) * factor, 0.0)).round()
        steps, scale = x * factor, span / 255
    else:
        scale, zero = scale.view(-1, 1, 1), zero.view(-1, 1, 1)
        steps = x / scale
    return steps.clamp(-128 - zero, 127 - zero).round() * scale
