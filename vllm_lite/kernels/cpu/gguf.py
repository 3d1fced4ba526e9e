"""GGUF blocks expanded to numbers by the compiled CPU kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu.arguments import (
    dtype_number,
)
from vllm_lite.kernels.gguf_books import BOOK_TYPES, book_of


def _words(ggml_type: int) -> Tensor:
    """A type's book as the kernels' codes, four to a word."""
    book = book_of(ggml_type)
    # The codes of zero, and of one, in csrc/cpu/kernels/ggml_books.h.
    codes = 16 + 8 * book if int(book.min()) < 0 else 64 + book
    return codes.to(torch.uint8).contiguous()


# Kept: the kernels read them.
BOOKS = {ggml_type: _words(ggml_type) for ggml_type in BOOK_TYPES}
for _type, _book in BOOKS.items():
    _cpu.set_ggml_book(_type, _book.data_ptr())


def dequantize_gguf(
    raw: memoryview | Tensor, ggml_type: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    storage = raw.numpy() if isinstance(raw, Tensor) else np.frombuffer(raw, np.uint8)
    try:
        block_elements, block_bytes = _cpu.ggml_block(ggml_type)
    except ValueError as error:
        raise CheckpointError(f"{error}; convert the model to Q4_K, Q8_0 or BF16") from None
    size = math.prod(shape)
    divisible = block_elements == 16  # plain floats are only grouped for speed
    if not divisible and size and shape[-1] % block_elements:
        raise CheckpointError(f"a row of {shape[-1]} values is not made of whole GGUF blocks")
    if storage.nbytes * block_elements != size * block_bytes or not storage.flags.c_contiguous:
        raise CheckpointError(
            f"a GGUF tensor of shape {tuple(shape)} has {storage.nbytes} bytes of storage, "
            f"not {size * block_bytes // block_elements}: the file is damaged"
        )
    output = torch.empty(tuple(shape), dtype=dtype)
    dtype_code = dtype_number("dequantize_gguf", output)
    _cpu.dequantize(storage.ctypes.data, output.data_ptr(), ggml_type, dtype_code, size)
    return output
