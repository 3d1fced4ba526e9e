"""Token masks by Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import cdiv

_MASK_BLOCK = 1024


@triton.jit
def token_mask_kernel(
    logits_ptr, rows_ptr, bits_ptr, logits_stride, bits_stride, size, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < size
    words = tl.load(bits_ptr + place * bits_stride + tokens // 32, mask=is_token, other=0)
    is_banned = ((words >> (tokens % 32)) & 1) == 0
    tl.store(logits_ptr + row * logits_stride + tokens, float("-inf"), mask=is_token & is_banned)


def apply_token_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    size = logits.shape[1]
    grid = (len(rows), cdiv(size, _MASK_BLOCK))
    token_mask_kernel[grid](
        logits, rows, bits, logits.stride(0), bits.stride(0), size, BLOCK=_MASK_BLOCK
    )
