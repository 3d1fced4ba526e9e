"""How vectors are written: numbers, bytes of many types, bits.

Knows no route. Bytes are those that torch's casts give, rounded to the nearest, ties to even.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vllm_lite.errors import RequestError

Vectors = NDArray[np.float32]


def as_bytes(vectors: Vectors, dtype: str, endianness: str) -> bytes:
    """`vectors` as values of `dtype`, one after the other."""
    cast = _CASTS[dtype](np.ascontiguousarray(vectors, np.float32))
    if endianness not in ("native", sys.byteorder):
        cast = cast.byteswap()
    return cast.tobytes()


def as_base64(vectors: Vectors, dtype: str = "float32", endianness: str = "native") -> str:
    return base64.b64encode(as_bytes(vectors, dtype, endianness)).decode()


def packed_bits(vector: Vectors, *, signed: bool) -> list[int]:
    """A bit for each number, 1 unless it is negative, eight to a byte; raises RequestError."""
    if len(vector) % 8:
        raise RequestError.about(
            "embedding_types", f"binary and ubinary need a multiple of 8 numbers, not {len(vector)}"
        )
    packed = np.packbits(vector >= 0).astype(np.int16)
    bits: list[int] = (packed - 128 if signed else packed).tolist()
    return bits


def _bfloat16(values: Vectors) -> NDArray[np.uint16]:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _float16(values: Vectors) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


@cache
def _magnitudes(exponent_bits: int, last: int) -> NDArray[np.float64]:
    """The values of the bytes 0 to `last` of an 8-bit type, and of the byte after them."""
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(last + 2)
    exponents, fractions = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    scale = np.exp2(np.maximum(exponents, 1) - bias - mantissa_bits)
    values: NDArray[np.float64] = (fractions + ((exponents > 0) << mantissa_bits)) * scale
    return values


def _fp8(values: Vectors, exponent_bits: int, last: int) -> NDArray[np.uint8]:
    """Bytes of an 8-bit type whose largest value is the byte `last`."""
    known = _magnitudes(exponent_bits, last)
    sizes = np.abs(values.astype(np.float64))
    above = np.minimum(np.searchsorted(known, sizes), last + 1)
    below = np.maximum(above - 1, 0)
    up, down = known[above] - sizes, sizes - known[below]
    is_up = (up < down) | ((up == down) & (above % 2 == 0))
    codes = np.where(is_up, above, below)
    if exponent_bits == 4:  # has no infinity
        codes = np.minimum(codes, last)
    codes = np.where(np.isnan(values), 0x7F, codes)
    signs: NDArray[np.int64] = np.signbit(values).astype(np.int64) << 7
    return (codes + signs).astype(np.uint8)


_CASTS: dict[str, Callable[[Vectors], NDArray[np.generic]]] = {
    "float32": lambda values: values,
    "float16": _float16,
    "bfloat16": _bfloat16,
    "fp8_e4m3": lambda values: _fp8(values, 4, 0x7E),
    "fp8_e5m2": lambda values: _fp8(values, 5, 0x7B),
}
