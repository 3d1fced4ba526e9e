"""Dequantisation of GGUF blocks by the gguf package."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vllm_lite.errors import UsageError

# Bits of a code by type, of Q1_0 and Q2_0, which the package does not decode: blocks are a half
# float and 16 bytes of codes, the first in the lowest bits.
_CODE_BITS = {41: 1, 42: 2}


def dequantize_gguf(
    raw: memoryview | Tensor, ggml_type: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Expand GGUF storage `raw` to a tensor of shape (torch order) and dtype; needs `gguf`."""
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise UsageError(
            "reading GGUF without the compiled kernels needs the gguf package: pip install gguf"
        ) from None
    storage = raw.numpy() if isinstance(raw, Tensor) else np.frombuffer(raw, np.uint8)
    data = storage.reshape(*shape[:-1], -1)
    if bits := _CODE_BITS.get(ggml_type):
        return _small(data, bits).to(dtype).reshape(tuple(shape))
    kind = GGMLQuantizationType(ggml_type)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        # gguf reads these two as typed arrays, all others as bytes.
        data = data.view("<f4" if kind is GGMLQuantizationType.F32 else "<f2")
    return torch.from_numpy(dequantize(data, kind)).to(dtype).reshape(tuple(shape))


def _small(data: np.ndarray, bits: int) -> Tensor:
    """Of one bit, 1 and -1; of two, -1 to 2; times the block's scale."""
    blocks = data.reshape(-1, 18)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = blocks[:, 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & 2**bits - 1
    values = codes.reshape(len(blocks), -1).astype(np.float32) * (2 // bits) - 1
    return torch.from_numpy(scales * values)
