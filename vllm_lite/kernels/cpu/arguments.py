"""Checks of tensors for the compiled kernels, and their types as numbers.

Knows no operation; errors name the one that was called.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def refuse(operation: str, reason: str) -> ValueError:
    """Make the error of a call whose arguments do not fit."""
    return ValueError(f"{operation}: {reason}")


def dtype_number(operation: str, *tensors: Tensor) -> int:
    """The kernels' number for the tensors' common type."""
    dtype = tensors[0].dtype
    code = DTYPES.get(dtype)
    if code is None:
        raise refuse(operation, f"takes float32 or bfloat16, got {dtype}")
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise refuse(operation, f"takes one type, got {dtype} and {tensor.dtype}")
    return code


def row_stride(operation: str, tensor: Tensor) -> int:
    """The row stride of a matrix whose rows are dense."""
    if tensor.dim() != 2 or (tensor.stride(1) != 1 and tensor.shape[1] > 1):
        raise refuse(operation, "takes matrices with dense rows")
    return tensor.stride(0)


def row_strides(operation: str, tensor: Tensor) -> tuple[int, int]:
    """Strides between tokens and between heads of [T, N] or [T, H, N] with dense rows."""
    if tensor.dim() == 2:
        return row_stride(operation, tensor), 0
    if tensor.dim() != 3 or (tensor.stride(2) != 1 and tensor.shape[2] > 1):
        raise refuse(operation, "takes matrices, or heads, with dense rows")
    return tensor.stride(0), tensor.stride(1)


def check_dense(operation: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Refuse `tensor` unless it is dense and has this type and shape."""
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        raise refuse(operation, f"takes a dense {dtype} tensor {list(shape)}")


def check_floats(operation: str, name: str, numbers: Tensor | None, *shape: int) -> None:
    """Refuse `numbers`, where there are any, unless they are dense float32 of this shape."""
    if numbers is None:
        return
    if numbers.dtype != torch.float32 or numbers.shape != shape or not numbers.is_contiguous():
        raise refuse(operation, f"{name} must be dense float32 {list(shape)}")


def check_product(
    operation: str, x: Tensor, bias: Tensor | None, num_outputs: int, num_inputs: int
) -> None:
    """Refuse x and bias unless they fit a weight [num_outputs, num_inputs]."""
    if x.dim() != 2 or x.shape[1] != num_inputs:
        raise refuse(operation, f"x {list(x.shape)} does not fit the weight")
    if bias is not None and (bias.shape != (num_outputs,) or bias.dtype != torch.float32):
        raise refuse(operation, "bias must be float32, one for each output")


def result_of(
    operation: str, out: Tensor | None, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Return `out` after checking that it fits a result [T, M], or a new tensor."""
    if out is None:
        return torch.empty(shape, dtype=dtype)
    if out.shape != shape or out.dtype != dtype:
        raise refuse(operation, f"out must be {list(shape)} {dtype}")
    return out
