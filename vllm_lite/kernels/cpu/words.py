"""Words of codes, taken apart by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import refuse, row_stride
from vllm_lite.kernels.reference import words as reference

_BITS = (2, 3, 4, 8)


def unpack_words(
    words: Tensor, bits: int, are_outputs: bool = False, out: Tensor | None = None
) -> Tensor:
    if words.dtype is not torch.int32 or bits not in _BITS:
        return reference.unpack_words(words, bits, are_outputs, out)
    rows, columns = words.shape
    if are_outputs:
        words = words.contiguous()
        most, strides = (8 * columns, rows), (1, words.stride(0))
    else:
        most, strides = (rows, columns * 32 // bits), (words.stride(0), words.stride(1))
    out = torch.empty(most, dtype=torch.uint8) if out is None else out
    if out.dtype is not torch.uint8 or any(a > b for a, b in zip(out.shape, most, strict=True)):
        raise refuse("unpack_words", f"out must be uint8 and at most {list(most)}")
    to = (out, row_stride("unpack_words", out), *out.shape)
    _cpu.unpack_words(words, *strides, bits, are_outputs, *to)
    return out
