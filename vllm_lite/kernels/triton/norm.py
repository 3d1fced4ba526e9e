"""RMSNorm by Triton, alone or fused with the residual addition: one program a row.

Rounds where `reference` rounds: the sum to its storage type before it is normed, the normed row
before the weight.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty_like


@triton.jit
def rms_norm_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    out_stride,
    out_head_stride,
    x_stride,
    x_head_stride,
    num_heads,
    size,
    eps,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) // num_heads
    head = tl.program_id(0) % num_heads
    out_ptr += token * out_stride + head * out_head_stride
    x_ptr += token * x_stride + head * x_head_stride
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    normed = normed.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + columns, normed, mask=mask)


@triton.jit
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    x_ptrs = x_ptr + row * x_stride + columns
    residual_ptrs = residual_ptr + row * residual_stride + columns
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    total = tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
    total = total.to(weight.dtype)
    tl.store(residual_ptrs, total, mask=mask)
    total = total.to(tl.float32)
    normed = total * tl.rsqrt(tl.sum(total * total, axis=0) / size + eps)
    normed = normed.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(x_ptrs, normed, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = empty_like(x)
    size = x.shape[-1]
    num_heads = 1 if x.dim() == 2 else x.shape[1]
    block = triton.next_power_of_2(size)
    rms_norm_kernel[(x.shape[0] * num_heads,)](
        out,
        x,
        weight,
        out.stride(0),
        out.stride(-2),
        x.stride(0),
        x.stride(-2),
        num_heads,
        size,
        eps,
        BLOCK=block,
        num_warps=warps_for(block),
    )
    return out


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    num_rows, size = x.shape
    block = triton.next_power_of_2(size)
    add_rms_norm_kernel[(num_rows,)](
        x,
        residual,
        weight,
        x.stride(0),
        residual.stride(0),
        size,
        eps,
        BLOCK=block,
        num_warps=warps_for(block),
    )
    return x, residual


def warps_for(block: int) -> int:
    """About 16 elements a thread, within one program's limits."""
    return min(16, max(1, block // 512))
