"""Embeddings and linear layers by plain weights, by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import (
    DTYPES,
    check_dense,
    check_product,
    dtype_number,
    refuse,
    result_of,
    row_stride,
)
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.elementwise import act_and_mul
from vllm_lite.kernels.cpu.mapped_memory import packed_weights
from vllm_lite.kernels.reference.linear import PackedHeads, PackedLinear


def embedding(ids: Tensor, rows: Tensor, first_row: int | None = None) -> Tensor:
    num_rows, size = rows.shape
    if not rows.is_contiguous():
        raise refuse("embedding", "takes dense rows")
    check_dense("embedding", ids, torch.int64, len(ids))
    out = rows.new_empty((len(ids), size))
    row_bytes = size * rows.element_size()
    calls.get().embedding(
        ids.data_ptr(),
        rows.data_ptr(),
        out.data_ptr(),
        len(ids),
        num_rows,
        row_bytes,
        -1 if first_row is None else first_row,
    )
    return out


def pack_linear(weight: Tensor) -> PackedLinear:
    num_outputs, num_inputs = weight.shape
    stride = row_stride("pack_linear", weight)
    dtype = dtype_number("pack_linear", weight)
    size = _cpu.packed_bytes(dtype, num_outputs, num_inputs)
    data = packed_weights.take(size)
    _cpu.pack_linear(weight.data_ptr(), data.data_ptr(), dtype, num_outputs, num_inputs, stride)
    return PackedLinear(data, weight.dtype, num_outputs, num_inputs)


def linear(
    x: Tensor,
    weight: PackedLinear,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    _check_product("linear", x, weight, bias)
    num_rows, num_inputs = x.shape
    out = result_of("linear", out, (num_rows, weight.num_outputs), out_dtype or x.dtype)
    calls.get().linear(
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        DTYPES[x.dtype],
        DTYPES[out.dtype],
        num_rows,
        weight.num_outputs,
        num_inputs,
        row_stride("linear", x),
        row_stride("linear", out),
    )
    return out


def gated_linear(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None, name: str = "silu"
) -> Tensor:
    _check_product("gated_linear", x, weight, bias)
    num_rows, num_inputs = x.shape
    size = weight.num_outputs // 2
    if name != "silu" or weight.num_outputs % (2 * _cpu.PANEL):
        # Only silu is fused, and only if no panel has outputs of both halves.
        return act_and_mul(linear(x, weight, bias), name)
    out = torch.empty(num_rows, size, dtype=x.dtype)
    calls.get().gated_linear(
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        DTYPES[x.dtype],
        num_rows,
        size,
        num_inputs,
        row_stride("gated_linear", x),
        size,
    )
    return out


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


def _check_product(operation: str, x: Tensor, weight: PackedLinear, bias: Tensor | None) -> None:
    check_product(operation, x, bias, weight.num_outputs, weight.num_inputs)
    if x.dtype != weight.dtype:
        raise refuse(operation, f"x {x.dtype} does not fit the weight")


def pack_heads(weights: Tensor) -> PackedHeads:
    num_heads, *sizes = weights.shape
    dtype = dtype_number("pack_heads", weights)
    if weights.stride(2) != 1 < weights.shape[2]:
        raise refuse("pack_heads", "takes matrices with dense rows")
    num_bytes = _cpu.packed_bytes(dtype, *sizes)
    data = packed_weights.take(num_heads * num_bytes)
    for head, weight in enumerate(weights):
        place = data.data_ptr() + head * num_bytes
        _cpu.pack_linear(weight.data_ptr(), place, dtype, *sizes, weight.stride(0))
    return PackedHeads(data, weights.dtype, num_heads, *sizes)


def head_linear(x: Tensor, weights: PackedHeads) -> Tensor:
    num_tokens, num_heads, size = x.shape
    num_copied = size - weights.num_inputs
    if num_copied < 0 or num_heads != weights.num_heads or x.stride(2) != 1 < size:
        raise refuse("head_linear", "x and the heads' weights do not fit together")
    if x.dtype != weights.dtype:
        raise refuse("head_linear", f"x {x.dtype} does not fit the weights")
    out = x.new_empty((num_tokens, num_heads, weights.num_outputs + num_copied))
    calls.get().head_linear(
        x.data_ptr(),
        weights.data.data_ptr(),
        out.data_ptr(),
        dtype_number("head_linear", x),
        num_tokens,
        num_heads,
        weights.num_outputs,
        weights.num_inputs,
        num_copied,
        *x.stride()[:2],
    )
    return out
