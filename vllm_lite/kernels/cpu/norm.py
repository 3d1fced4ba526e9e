"""Norms of rows by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import (
    dtype_number,
    refuse,
    row_stride,
)
from vllm_lite.kernels.cpu.calls import calls


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    return _norm("rms_norm", x, weight, None, eps, out)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _add_and_norm("fused_add_rms_norm", x, residual, weight, None, eps)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    return _norm("layer_norm", x, weight, bias, eps, out)


def fused_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return _add_and_norm("fused_add_layer_norm", x, residual, weight, bias, eps)


def _norm(
    operation: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Tensor | None,
) -> Tensor:
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    elif out.shape != x.shape:
        raise refuse(operation, "out must match x")
    _check_factors(operation, x, weight, bias)
    calls.get().norm(
        *(len(x), dtype_number(operation, x, out), dtype_number(operation, weight)),
        *(x, None, weight, bias, out, 1 if x.dim() == 2 else x.shape[1], x.shape[-1]),
        *(*_row_strides(operation, x), 0, *_row_strides(operation, out)),
        *(0 if weight.dim() == 1 else weight.shape[1], eps, operation == "layer_norm"),
    )
    return out


def _add_and_norm(
    operation: str, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    if residual.shape != x.shape:
        raise refuse(operation, "residual must match x")
    num_rows, size = x.shape
    stride = row_stride(operation, x)
    _check_factors(operation, x, weight, bias)
    calls.get().norm(
        *(num_rows, dtype_number(operation, x, residual), dtype_number(operation, weight)),
        *(x, residual, weight, bias, x, 1, size),
        *(stride, 0, row_stride(operation, residual), stride, 0, 0),
        *(eps, operation == "fused_add_layer_norm"),
    )
    return x, residual


def _check_factors(operation: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Refuse a norm's weight and bias unless they are [N], or [H, N], of x's type or float32."""
    for factors in (weight,) if bias is None else (weight, bias):
        if factors.shape not in (x.shape[-1:], x.shape[1:]) or not factors.is_contiguous():
            raise refuse(operation, "weight and bias must match x")
        if factors.shape != weight.shape:
            raise refuse(operation, "weight and bias must have one shape")
        if factors.dtype not in (x.dtype, torch.float32) or factors.dtype != weight.dtype:
            raise refuse(
                operation, f"weight and bias must both be {x.dtype}, or both torch.float32"
            )


def _row_strides(operation: str, tensor: Tensor) -> tuple[int, int]:
    """Strides between tokens and between heads of [T, N] or [T, H, N] with dense rows."""
    if tensor.dim() == 2:
        return row_stride(operation, tensor), 0
    if tensor.dim() != 3 or (tensor.stride(2) != 1 and tensor.shape[2] > 1):
        raise refuse(operation, "takes matrices, or heads, with dense rows")
    return tensor.stride(0), tensor.stride(1)
