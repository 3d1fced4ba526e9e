"""Products of an output head of which only the largest output of each row is kept; part of `cpu`.

Meaning: `head_ops`. Shapes and types are checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.kernels.cpu.arguments import check_product, dtype_number, refuse, row_stride
from vllm_lite.kernels.reference.ops import PackedLinear
from vllm_lite.kernels.reference.quantized import QuantizedWeight


def linear_argmax(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_rows, num_inputs = x.shape
    check_product("linear_argmax", x, bias, weight.num_outputs, weight.num_inputs)
    if x.dtype != weight.dtype:
        raise refuse("linear_argmax", f"x {x.dtype} does not fit the weight")
    tokens, largest = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    _cpu.linear_argmax(
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        tokens.data_ptr(),
        largest.data_ptr(),
        dtype_number("linear_argmax", x),
        num_rows,
        weight.num_outputs,
        num_inputs,
        row_stride("linear_argmax", x),
    )
    return tokens, largest


def quantized_linear_argmax(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_rows, num_inputs = x.shape
    check_product("quantized_linear_argmax", x, bias, weight.num_outputs, weight.num_inputs)
    tokens, largest = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    _cpu.quantized_linear_argmax(
        x.data_ptr(),
        weight.table.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        tokens.data_ptr(),
        largest.data_ptr(),
        dtype_number("quantized_linear_argmax", x),
        num_rows,
        len(weight.parts),
        num_inputs,
        row_stride("quantized_linear_argmax", x),
    )
    return tokens, largest
