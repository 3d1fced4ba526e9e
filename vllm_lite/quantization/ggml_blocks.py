"""Weights rounded to GGUF's blocks of 32 and of 256 values, from the layouts of ggml.

Ranges are those of a block's values: nothing is searched, and no data tells which values count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from vllm_lite.kernels.reference.quantized import GROUP

# Values of the larger blocks.
_SUPER: Final = 256


def to_q8_0(weight: Tensor) -> Tensor:
    """Quantise rows [M, N] to blocks [M, N / 32 * 34] uint8: a float16 scale and 32 int8."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    scale = (groups.abs().amax(2, keepdim=True) / 127).half()
    codes = divided(groups, scale).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat([scale.view(torch.uint8), codes.view(torch.uint8)], 2).flatten(1)


def to_q4_1(weight: Tensor) -> Tensor:
    """Quantise rows [M, N] to blocks [M, N / 32 * 20] uint8: scale, minimum, and 4 bits a value.

    Both are float16; a byte holds values i and i + 16 of a group.
    """
    head, codes = _shifted(weight, 15)
    return torch.cat([head, nibbles(codes)], 2).flatten(1)


def to_q5_1(weight: Tensor) -> Tensor:
    """As to_q4_1, with the fifth bits before the others: [M, N / 32 * 24]."""
    head, codes = _shifted(weight, 31)
    return torch.cat([head, fifth_bits(codes), nibbles(codes)], 2).flatten(1)


def to_q4_0(weight: Tensor) -> Tensor:
    """Quantise rows [M, N] to blocks [M, N / 32 * 18] uint8: a scale, and 4 bits less 8 a value."""
    head, codes = _signed(weight, 8)
    return torch.cat([head, nibbles(codes)], 2).flatten(1)


def to_q5_0(weight: Tensor) -> Tensor:
    """As to_q4_0, 5 bits less 16, with the fifth bits before the others: [M, N / 32 * 22]."""
    head, codes = _signed(weight, 16)
    return torch.cat([head, fifth_bits(codes), nibbles(codes)], 2).flatten(1)


def to_q2_k(weight: Tensor) -> Tensor:
    """Scales and minimums of 4 bits for each 16 values, then codes, then their float16 factors."""
    factors, scales, minimums, codes = _with_minimums(weight, 16, 3, 15)
    # Quarters of 128 values share bytes.
    quarters = codes.view(*codes.shape[:2], 2, 4, 32)
    packed = _or_of([quarters[..., i, :] << 2 * i for i in range(4)]).flatten(2)
    return torch.cat([scales | minimums << 4, packed, factors], 2).flatten(1)


def to_q4_k(weight: Tensor) -> Tensor:
    """Factors, scales and minimums of 6 bits for each 32 values, and 4 bits a value."""
    factors, scales, minimums, codes = _with_minimums(weight, 32, 15, 63)
    return torch.cat([factors, _sixes(scales, minimums), _halves(codes)], 2).flatten(1)


def to_q5_k(weight: Tensor) -> Tensor:
    """As to_q4_k, with the fifth bits of eight groups in a byte before the others."""
    factors, scales, minimums, codes = _with_minimums(weight, 32, 31, 63)
    groups = codes.view(*codes.shape[:2], 8, 32)
    high = _or_of([(groups[:, :, i] >> 4) << i for i in range(8)])
    parts = [factors, _sixes(scales, minimums), high, _halves(codes & 15)]
    return torch.cat(parts, 2).flatten(1)


def to_q3_k(weight: Tensor) -> Tensor:
    """The third bits, two bits a value, scales of 6 bits less 32 for each 16, and their factor."""
    factor, scales, codes = _without_minimums(weight, 4, 31)
    groups = codes.view(*codes.shape[:2], 8, 32)
    high = _or_of([(groups[:, :, i] >> 2) << i for i in range(8)])
    quarters = (codes & 3).view(*codes.shape[:2], 2, 4, 32)
    low = _or_of([quarters[..., i, :] << 2 * i for i in range(4)]).flatten(2)
    sixes = (scales + 32).to(torch.uint8)
    lower = (sixes[..., :8] & 15) | (sixes[..., 8:] & 15) << 4
    upper = _or_of([(sixes[..., 4 * i : 4 * i + 4] >> 4) << 2 * i for i in range(4)])
    return torch.cat([high, low, lower, upper, factor], 2).flatten(1)


def to_q6_k(weight: Tensor) -> Tensor:
    """Four bits a value, the two others, int8 scales for each 16 values, and their factor."""
    factor, scales, codes = _without_minimums(weight, 32, 127)
    quarters = codes.view(*codes.shape[:2], 2, 4, 32)
    low = (quarters[..., :2, :] & 15) | (quarters[..., 2:, :] & 15) << 4
    high = _or_of([(quarters[..., i, :] >> 4) << 2 * i for i in range(4)])
    parts = [low.flatten(2), high.flatten(2), scales.to(torch.int8).view(torch.uint8), factor]
    return torch.cat(parts, 2).flatten(1)


CONVERTERS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "Q4_0": to_q4_0,
    "Q4_1": to_q4_1,
    "Q5_0": to_q5_0,
    "Q5_1": to_q5_1,
    "Q8_0": to_q8_0,
    "Q2_K": to_q2_k,
    "Q3_K": to_q3_k,
    "Q4_K": to_q4_k,
    "Q5_K": to_q5_k,
    "Q6_K": to_q6_k,
}


def _shifted(weight: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Scales and minimums [M, G, 4] uint8, and codes [M, G, 32] up to `top`."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    low, high = (end[..., None] for end in _ends(groups))
    minimum = low.half()
    scale = ((high - minimum.float()) / top).half()
    codes = divided(groups - minimum.float(), scale).round_().clamp_(0, top)
    return torch.cat([scale.view(torch.uint8), minimum.view(torch.uint8)], 2), _bytes(codes)


def _signed(weight: Tensor, middle: int) -> tuple[Tensor, Tensor]:
    """Scales [M, G, 2] uint8 and codes [M, G, 32]; the value of largest magnitude gets code 0."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    scale = (_farthest(groups) / -middle).half()
    codes = divided(groups, scale).add_(middle).round_().clamp_(0, 2 * middle - 1)
    return scale.view(torch.uint8), _bytes(codes)


def _farthest(groups: Tensor) -> Tensor:
    """The value of largest magnitude of each group [M, G, 32], the first of several: [M, G, 1]."""
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    found = torch.where(high > -low, high, low)
    # argmax tells which is first, but takes ten times as long: it is for few.
    are_both = (high == -low).squeeze(2)
    tied = groups[are_both]
    found[are_both] = tied.gather(1, tied.abs().argmax(1, keepdim=True))
    return found


def _with_minimums(
    weight: Tensor, size: int, top: int, top_scale: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors [M, S, 4] uint8, scales and minimums [M, S, 256 / size], and codes [M, S, 256]."""
    groups = weight.float().reshape(weight.shape[0], -1, _SUPER // size, size)
    low, high = _ends(groups)
    low = low.clamp(max=0)
    scales, minimums = (high - low).clamp(min=0) / top, -low
    factor = (scales.amax(2, keepdim=True) / top_scale).half()
    lowest = (minimums.amax(2, keepdim=True) / top_scale).half()
    scales = divided(scales, factor).round_().clamp_(0, top_scale)
    minimums = divided(minimums, lowest).round_().clamp_(0, top_scale)
    raised = groups + (minimums * lowest.float())[..., None]
    codes = divided(raised, (scales * factor.float())[..., None]).round_().clamp_(0, top)
    factors = torch.cat([factor.view(torch.uint8), lowest.view(torch.uint8)], 2)
    return factors, _bytes(scales), _bytes(minimums), _bytes(codes).flatten(2)


def _ends(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of each group."""
    if groups.shape[-1] < GROUP:
        low, high = groups.aminmax(dim=-1)
        return low, high
    # Each is ten times as fast as both together, but takes either zero for the other.
    low, high = groups.amin(-1), groups.amax(-1)
    is_zero = low == 0
    low[is_zero], high[is_zero] = groups[is_zero].aminmax(dim=-1)
    return low, high


def _without_minimums(weight: Tensor, middle: int, top_scale: int) -> tuple[Tensor, Tensor, Tensor]:
    """Factor [M, S, 2] uint8, scales [M, S, 16] of either sign, and codes [M, S, 256]."""
    groups = weight.float().reshape(weight.shape[0], -1, 16, 16)
    place = groups.abs().argmax(3, keepdim=True)
    scales = groups.gather(3, place).squeeze(3) / -middle
    factor = (scales.abs().amax(2, keepdim=True) / top_scale).half()
    scales = divided(scales, factor).round_().clamp_(-top_scale, top_scale)
    wide = (scales * factor.float())[..., None]
    codes = divided(groups, wide).add_(middle).round_().clamp_(0, 2 * middle - 1)
    return factor.view(torch.uint8), scales, _bytes(codes).flatten(2)


def divided(groups: Tensor, scale: Tensor) -> Tensor:
    """Values in units of their scales, float32; zeros where a scale is zero."""
    wide = scale.float()
    ratios = groups / wide
    return ratios if bool(wide.all()) else ratios.masked_fill_(wide == 0, 0.0)


def _bytes(codes: Tensor) -> Tensor:
    """Codes below 128 as uint8, which torch converts to by itself far more slowly than to int8."""
    return codes.to(torch.int8).view(torch.uint8)


def nibbles(codes: Tensor) -> Tensor:
    """Codes [..., 32] to bytes [..., 16], of which each holds values i and i + 16."""
    return (codes[..., :16] & 15) | (codes[..., 16:] & 15) << 4


def fifth_bits(codes: Tensor) -> Tensor:
    """The fifth bits of codes [..., 32] as bytes [..., 4], lowest bits first."""
    bits = (codes >> 4).reshape(*codes.shape[:-1], 4, 8)
    return _or_of([bits[..., i] << i for i in range(8)])


def _halves(codes: Tensor) -> Tensor:
    """Codes [M, S, 256] to bytes [M, S, 128], of which each holds values i and i + 32 of 64."""
    pairs = codes.view(*codes.shape[:2], 4, 2, 32)
    return (pairs[..., 0, :] | pairs[..., 1, :] << 4).flatten(2)


def _sixes(scales: Tensor, minimums: Tensor) -> Tensor:
    """Scales and minimums [M, S, 8] of six bits to bytes [M, S, 12]."""
    first = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    second = minimums[..., :4] | (minimums[..., 4:] >> 4) << 6
    third = (scales[..., 4:] & 15) | (minimums[..., 4:] & 15) << 4
    return torch.cat([first, second, third], 2)


def _or_of(parts: list[Tensor]) -> Tensor:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole | part
    return whole
