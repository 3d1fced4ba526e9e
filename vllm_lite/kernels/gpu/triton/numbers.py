"""Numbers of one byte in Triton kernels, made and read by integer arithmetic.

Formats are those of `reference_quantized`. Storage is passed as bytes: older GPUs know no 8-bit
floats, so that their bits are taken apart here, the same on every GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# A format's name in kernels, as a compile-time constant.
INT8 = tl.constexpr(1)
E4M3 = tl.constexpr(2)

_FORMATS = {torch.int8: 1, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}


def format_of(dtype: torch.dtype) -> int:
    """A dtype's name in kernels; 0 for what is no number of one byte."""
    return _FORMATS.get(dtype, 0)


def as_stored(numbers: Tensor) -> Tensor:
    """The same storage as a kernel takes it: 8-bit floats as bytes."""
    return numbers.view(torch.uint8) if format_of(numbers.dtype) > 1 else numbers


@triton.jit
def round_half_even(x):
    """float32 of magnitude below 2**22 to whole numbers; the launch must not fuse additions."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _encode_float(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """float32 to the bits of a float of one byte; what is too large becomes the largest."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    MAGIC_EXPONENT: tl.constexpr = 24 - BIAS - MANTISSA
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(x), LARGEST)
    bits = magnitude.to(tl.uint32, bitcast=True)
    rounded = (bits + (2 ** (SHIFT - 1) - 1) + ((bits >> SHIFT) & 1)) >> SHIFT
    normal = rounded - (127 - BIAS) * 2**MANTISSA
    # Added to a number whose last bit is worth the smallest subnormal, the rest rounds to it.
    small = (magnitude + 2.0**MAGIC_EXPONENT).to(tl.uint32, bitcast=True)
    small -= (127 + MAGIC_EXPONENT) * 2**23
    code = tl.where(magnitude < 2.0 ** (1 - BIAS), small, normal)
    return (tl.where(x != x, 0x7F, code) | sign).to(tl.uint8)


@triton.jit
def encode(x, FORMAT: tl.constexpr):
    """float32 to the storage of FORMAT, to nearest even."""
    if FORMAT == INT8:
        return round_half_even(x).to(tl.int8)
    elif FORMAT == E4M3:
        return _encode_float(x, 3, 7, 448.0)
    else:
        return _encode_float(x, 2, 15, 57344.0)


@triton.jit
def decode(codes, FORMAT: tl.constexpr):
    """Storage of FORMAT to exact float16."""
    if FORMAT == INT8:
        return codes.to(tl.float16)
    elif FORMAT == E4M3:
        bits = codes.to(tl.uint16)
        magnitude = bits & 0x7F
        half = ((bits & 0x80) << 8) | (magnitude << 7)
        # The exponents' biases differ by 8; zero and subnormals come out right as well.
        value = half.to(tl.float16, bitcast=True) * 256.0
        return tl.where(magnitude == 0x7F, float("nan"), value).to(tl.float16)
    else:
        return (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True)


@triton.jit
def row_scale(highest, LARGEST: tl.constexpr):
    """(what numbers are multiplied by, what their codes are) of rows by largest magnitude."""
    usable = (highest > 1e-30) & (highest < float("inf"))
    inverse = tl.where(usable, tl.div_rn(LARGEST, tl.where(usable, highest, 1.0)), 0.0)
    return inverse, tl.div_rn(highest, LARGEST)


@triton.jit
def encode_scaled(x, inverse, FORMAT: tl.constexpr):
    """x times `inverse` in the storage of FORMAT; zeros where the inverse is zero."""
    return encode(tl.where(inverse == 0.0, 0.0, x * inverse), FORMAT)
