"""The values of codes of a few bits: floats of eight, six and four bits, and bitsandbytes'."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import Number

# Bits of the exponent and of the mantissa, without infinities (OCP Microscaling Formats, 2023).
_SMALL = {"float6_e2m3": (2, 3), "float6_e3m2": (3, 2), "float4_e2m1": (2, 1)}
_BYTES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
# Quantiles of a normal distribution (Dettmers et al., 2023, QLoRA), as bitsandbytes rounds them.
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
# bitsandbytes' floats: a sign and one of these.
_FP4 = tuple(value / 12 for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0))


@cache
def values_of(number: Number) -> Tensor:
    """[2**bits] float32: the value of each code."""
    if number in _BYTES:
        return torch.arange(256, dtype=torch.uint8, device="cpu").view(_BYTES[number]).float()
    if number in _SMALL:
        positive = _floats(*_SMALL[number])
    elif number == "nf4":
        return torch.tensor(_NF4, device="cpu")
    else:
        positive = torch.tensor(_FP4, device="cpu")
    return torch.cat((positive, -positive))


def _floats(exponent_bits: int, mantissa_bits: int) -> Tensor:
    """All positive values in the order of their codes."""
    codes = torch.arange(2 ** (exponent_bits + mantissa_bits), device="cpu")
    exponents, mantissas = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    fractions = mantissas.float() / 2**mantissa_bits + (exponents > 0).float()
    lowest = 2 - 2 ** (exponent_bits - 1)
    return torch.ldexp(fractions, (exponents.clamp(min=1) - 1 + lowest).int())
