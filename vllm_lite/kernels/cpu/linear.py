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
    row_bytes, first = size * rows.element_size(), -1 if first_row is None else first_row
    calls.get().embedding(len(ids), ids, rows, out, num_rows, row_bytes, first)
    return out


def pack_linear(
    weight: Tensor,
    num_outputs: int | None = None,
    first: int = 0,
    data: Tensor | None = None,
) -> PackedLinear:
    count, num_inputs = weight.shape
    total = count if num_outputs is None else num_outputs
    stride = row_stride("pack_linear", weight)
    dtype = dtype_number("pack_linear", weight)
    size = _cpu.packed_bytes(dtype, total, num_inputs)
    data = packed_weights.take(size) if data is None else data
    if first + count > total or len(data) != size:
        raise refuse("pack_linear", f"{count} rows from {first} on do not fit {total} outputs")
    largest = torch.empty(1)
    _cpu.pack_linear(dtype, weight, stride, data, first, count, num_inputs, largest)
    return PackedLinear(data, weight.dtype, total, num_inputs, largest.item())


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
        *(num_rows, DTYPES[x.dtype], x, row_stride("linear", x)),
        *(weight.data, bias, weight.num_outputs, num_inputs),
        *(DTYPES[out.dtype], out, row_stride("linear", out)),
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
    dtype = DTYPES[x.dtype]
    calls.get().gated_linear(
        *(num_rows, dtype, x, row_stride("gated_linear", x)),
        *(weight.data, bias, size, num_inputs),
        *(dtype, out, size),
    )
    return out


def linear_argmax(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_rows, num_inputs = x.shape
    _check_product("linear_argmax", x, weight, bias)
    tokens, largest = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    _cpu.linear_argmax(
        *(num_rows, largest, tokens, DTYPES[x.dtype], x, row_stride("linear_argmax", x)),
        *(weight.data, bias, weight.num_outputs, num_inputs),
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
        _cpu.pack_linear(dtype, weight, weight.stride(0), place, 0, *sizes, None)
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
        *(num_tokens, dtype_number("head_linear", x), x, *x.stride()[:2], weights.data, out),
        *(num_heads, weights.num_outputs, weights.num_inputs, num_copied),
    )
    return out
