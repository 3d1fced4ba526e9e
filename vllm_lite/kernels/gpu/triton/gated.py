"""Rows with a gate, normalised or not, by Triton: a program works on a group of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.elementwise import activated

# Elements of a row that a program multiplies where there is no norm.
_PRODUCT_SIZE = 1024


@triton.jit
def gated_norm_kernel(
    out_ptr,
    x_ptr,
    gate_ptr,
    weight_ptr,
    x_stride,
    gate_stride,
    size,
    group_size,
    eps,
    ACTIVATION: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, BLOCK)
    columns = tl.program_id(1) * group_size + numbers
    mask = (numbers < group_size) & (columns < size)
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
    factor = activated(gate, ACTIVATION)
    wide = x.to(tl.float32)
    if NORM != "first":
        wide *= factor
    if NORM != "none":
        wide *= tl.rsqrt(tl.sum(wide * wide, axis=0) / group_size + eps)
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        wide = wide.to(x.dtype).to(tl.float32) * weight
    if NORM == "first":
        wide = wide.to(x.dtype).to(tl.float32) * factor
    tl.store(out_ptr + row * size + columns, wide, mask=mask)


def gated_product(x: Tensor, gate: Tensor, act: str) -> Tensor:
    return _gated(x, gate, x, "none", act, _PRODUCT_SIZE)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    group_size: int,
    act: str = "silu",
    norm_first: bool = False,
) -> Tensor:
    return _gated(x, gate, weight, "first" if norm_first else "last", act, group_size, eps)


def _gated(
    x: Tensor, gate: Tensor, weight: Tensor, norm: str, act: str, group_size: int, eps: float = 0.0
) -> Tensor:
    num_rows, size = x.shape
    out = x.new_empty(x.shape)
    block = triton.next_power_of_2(group_size)
    gated_norm_kernel[(num_rows, triton.cdiv(size, group_size))](
        out,
        x,
        gate,
        weight,
        x.stride(0),
        gate.stride(0),
        size,
        group_size,
        eps,
        ACTIVATION=act,
        NORM=norm,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return out
