"""What the compiled kernels are told of a tensor: its type's number and the stride of its rows.

Knows no operation; refusals name the one that was called.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def refuse(operation: str, reason: str) -> ValueError:
    """The error of a call whose arguments do not fit."""
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
