"""Norms of rows by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import (
    dtype_number,
    refuse,
    row_stride,
    row_strides,
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


def match_rms(x: Tensor, like: Tensor, least: float, out: Tensor | None = None) -> Tensor:
    if not least > 0:
        raise refuse("match_rms", f"least is {least}, not positive")
    return _level("match_rms", x, like, least, out)


def keep_outliers(x: Tensor, deviations: float, out: Tensor | None = None) -> Tensor:
    return _level("keep_outliers", x, None, deviations, out)


def _level(
    operation: str, x: Tensor, like: Tensor | None, bound: float, out: Tensor | None
) -> Tensor:
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    other = x if like is None else like
    if out.shape != x.shape or other.shape != x.shape:
        raise refuse(operation, "like and out must match x")
    strides = (row_stride(operation, tensor) for tensor in (x, other, out))
    dtype = dtype_number(operation, x, other, out)
    calls.get().level_rows(*(len(x), dtype, x, like, out, x.shape[1], *strides, bound))
    return out


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
        *(*row_strides(operation, x), 0, *row_strides(operation, out)),
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
