"""RMSNorm and LayerNorm by Triton, alone or fused with the residual addition: one program a row,
or a group of a row where a gate is multiplied.

Rounds where `reference` rounds: the sum to its storage type before the norm, and in RMSNorm the
normalised row before a weight of its own type.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty_like

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import begin_next_and_wait, chained
from vllm_lite.kernels.gpu.triton.elementwise import activated
from vllm_lite.kernels.gpu.triton.launch import launch

# Elements of a row that a program multiplies where there is no norm.
_PRODUCT_SIZE = 1024


@triton.jit
def weights_of(weight_ptr, bias_ptr, columns, size, HAS_BIAS: tl.constexpr):
    """A norm's weights, and its bias or them again, for `normed_row`."""
    weight = tl.load(weight_ptr + columns, mask=columns < size, other=0.0)
    bias = weight
    if HAS_BIAS:
        bias = tl.load(bias_ptr + columns, mask=columns < size, other=0.0)
    return weight, bias


@triton.jit
def normed_row(x, weight, bias, size, eps, IS_CENTERED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Normalise a row x, float32 and zero beyond its size."""
    mask = tl.arange(0, x.shape[0]) < size
    if IS_CENTERED:
        x = tl.where(mask, x - tl.sum(x, axis=0) / size, 0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    if not IS_CENTERED:
        normed = normed.to(weight.dtype).to(tl.float32)
    normed = normed * weight.to(tl.float32)
    if HAS_BIAS:
        normed += bias.to(tl.float32)
    return normed


@triton.jit
def norm_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_stride,
    out_head_stride,
    x_stride,
    x_head_stride,
    weight_head_stride,
    num_heads,
    size,
    eps,
    IS_CENTERED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) // num_heads
    head = tl.program_id(0) % num_heads
    out_ptr += token * out_stride + head * out_head_stride
    x_ptr += token * x_stride + head * x_head_stride
    weight_ptr += head * weight_head_stride
    bias_ptr += head * weight_head_stride
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    weight, bias = weights_of(weight_ptr, bias_ptr, columns, size, HAS_BIAS)
    begin_next_and_wait(IS_CHAINED)
    x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    normed = normed_row(x, weight, bias, size, eps, IS_CENTERED, HAS_BIAS)
    tl.store(out_ptr + columns, normed, mask=mask)


@triton.jit
def add_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    IS_CENTERED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    weight, bias = weights_of(weight_ptr, bias_ptr, columns, size, HAS_BIAS)
    begin_next_and_wait(IS_CHAINED)
    x_ptrs = x_ptr + row * x_stride + columns
    residual_ptrs = residual_ptr + row * residual_stride + columns
    total = tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
    total = total.to(x_ptr.dtype.element_ty)
    tl.store(residual_ptrs, total, mask=mask)
    total = total.to(tl.float32)
    normed = normed_row(total, weight, bias, size, eps, IS_CENTERED, HAS_BIAS)
    tl.store(x_ptrs, normed, mask=mask)


@triton.jit
def level_kernel(
    out_ptr,
    x_ptr,
    like_ptr,
    out_stride,
    x_stride,
    like_stride,
    size,
    bound,
    HAS_LIKE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_LIKE:
        like = tl.load(like_ptr + row * like_stride + columns, mask=mask, other=0.0).to(tl.float32)
        own = tl.sum(x * x, axis=0) / size
        own = tl.where(own > bound, own, bound)
        result = x * (tl.sqrt(tl.sum(like * like, axis=0) / size) / tl.sqrt(own))
    else:
        mean = tl.sum(x, axis=0) / size
        apart = tl.where(mask, x - mean, 0.0)
        above = x - (mean + bound * tl.sqrt(tl.sum(apart * apart, axis=0) / size))
        result = tl.where(above < 0.0, 0.0, above)
    tl.store(out_ptr + row * out_stride + columns, result, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    return _norm(x, weight, None, eps, out, is_centered=False)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _add_norm(x, residual, weight, None, eps, is_centered=False)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    return _norm(x, weight, bias, eps, out, is_centered=True)


def fused_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return _add_norm(x, residual, weight, bias, eps, is_centered=True)


def match_rms(x: Tensor, like: Tensor, least: float, out: Tensor | None = None) -> Tensor:
    return _level(x, like, least, out)


def keep_outliers(x: Tensor, deviations: float, out: Tensor | None = None) -> Tensor:
    return _level(x, None, deviations, out)


def _level(x: Tensor, like: Tensor | None, bound: float, out: Tensor | None) -> Tensor:
    if out is None:
        out = empty_like(x)
    other, size = x if like is None else like, x.shape[1]
    block = next_power_of_2(size)
    level_kernel[(len(x),)](
        out,
        x,
        other,
        out.stride(0),
        x.stride(0),
        other.stride(0),
        size,
        float(bound),
        HAS_LIKE=like is not None,
        BLOCK=block,
        num_warps=warps_for(block),
    )
    return out


def _norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Tensor | None,
    *,
    is_centered: bool,
) -> Tensor:
    if out is None:
        out = empty_like(x)
    size = x.shape[-1]
    num_heads = 1 if x.dim() == 2 else x.shape[1]
    block = next_power_of_2(size)
    launch(
        norm_kernel,
        (x.shape[0] * num_heads,),
        out,
        x,
        weight,
        weight if bias is None else bias,
        out.stride(0),
        out.stride(-2),
        x.stride(0),
        x.stride(-2),
        0 if weight.dim() == 1 else size,
        num_heads,
        size,
        eps,
        IS_CENTERED=is_centered,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=warps_for(block),
        **chained(x.device),
    )
    return out


def _add_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    is_centered: bool,
) -> tuple[Tensor, Tensor]:
    num_rows, size = x.shape
    block = next_power_of_2(size)
    launch(
        add_norm_kernel,
        (num_rows,),
        x,
        residual,
        weight,
        weight if bias is None else bias,
        x.stride(0),
        residual.stride(0),
        size,
        eps,
        IS_CENTERED=is_centered,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=warps_for(block),
        **chained(x.device),
    )
    return x, residual


def warps_for(block: int) -> int:
    """Warps for about 16 elements a thread, within a program's limits."""
    return min(32, max(1, block // 512))


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
    block = next_power_of_2(group_size)
    gated_norm_kernel[(num_rows, cdiv(size, group_size))](
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
