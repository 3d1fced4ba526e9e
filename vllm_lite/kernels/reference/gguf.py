"""Dequantisation of GGUF blocks by the gguf package."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vllm_lite.errors import UsageError

# Not in the package: a half float and the signs of 128 values, 1 for a positive one.
_Q1_0 = 41


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
    if ggml_type == _Q1_0:
        return _signs(data).to(dtype).reshape(tuple(shape))
    kind = GGMLQuantizationType(ggml_type)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        # gguf reads these two as typed arrays, all others as bytes.
        data = data.view("<f4" if kind is GGMLQuantizationType.F32 else "<f2")
    return torch.from_numpy(dequantize(data, kind)).to(dtype).reshape(tuple(shape))


def _signs(data: np.ndarray) -> Tensor:
    blocks = data.reshape(-1, 18)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return torch.from_numpy(np.where(bits == 1, scales, -scales))
