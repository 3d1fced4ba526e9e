"""Linear layers and look-ups by quantised GGUF weights, by the compiled CPU kernels.

Shapes and types are checked here, ids in C++.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.errors import CheckpointError
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
from vllm_lite.kernels.cpu.mapped_memory import packed_weights
from vllm_lite.kernels.reference.quantized import (
    QuantizedPart,
    QuantizedRows,
    QuantizedWeight,
    make_quantized_weight,
)


def pack_quantized(parts: Sequence[QuantizedRows]) -> QuantizedWeight:
    num_inputs = parts[0].num_inputs
    if any(part.num_inputs != num_inputs for part in parts):
        raise refuse("pack_quantized", "parts must have one number of inputs")
    return make_quantized_weight([_pack(part) for part in parts], num_inputs)


def _pack(rows: QuantizedRows) -> QuantizedPart:
    kind, num_outputs, num_inputs = rows.ggml_type, rows.num_outputs, rows.num_inputs
    try:
        elements, size = _cpu.ggml_block(kind)
        packed_size = _cpu.packed_quantized_bytes(kind, num_outputs, num_inputs)
    except ValueError as error:
        raise CheckpointError(f"{error}; convert the model to Q4_K or Q8_0") from None
    if rows.blocks.shape[1] * elements != num_inputs * size:
        raise CheckpointError(
            f"GGUF rows of {num_inputs} values have {rows.blocks.shape[1]} bytes of storage, "
            f"not {num_inputs * size // elements}: the file is damaged"
        )
    data = packed_weights.take(packed_size)
    stride = row_stride("pack_quantized", rows.blocks)
    _cpu.pack_quantized(kind, rows.blocks, stride, data, num_outputs, num_inputs)
    return QuantizedPart(data, kind, num_outputs)


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    num_rows, num_inputs = x.shape
    num_outputs = weight.num_outputs
    check_product("quantized_linear", x, bias, num_outputs, weight.num_inputs)
    out = result_of("quantized_linear", out, (num_rows, num_outputs), out_dtype or x.dtype)
    calls.get().quantized_linear(
        *(num_rows, dtype_number("quantized_linear", x), x, row_stride("quantized_linear", x)),
        *(weight.table, len(weight.parts), bias, num_inputs),
        *(DTYPES[out.dtype], out, row_stride("quantized_linear", out)),
    )
    return out


def quantized_lookup(
    weight: QuantizedWeight, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    if len(weight.parts) != 1:
        raise refuse("quantized_lookup", "takes a weight of one part")
    check_dense("quantized_lookup", ids, torch.int64, len(ids))
    out = torch.empty(ids.shape[0], weight.num_inputs, dtype=dtype)
    num_inputs, first = weight.num_inputs, -1 if first_row is None else first_row
    calls.get().quantized_lookup(
        *(len(ids), weight.table, num_inputs, ids, first),
        *(dtype_number("quantized_lookup", out), out, num_inputs),
    )
    return out


def quantized_linear_argmax(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_rows, num_inputs = x.shape
    check_product("quantized_linear_argmax", x, bias, weight.num_outputs, weight.num_inputs)
    tokens, largest = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    dtype = dtype_number("quantized_linear_argmax", x)
    _cpu.quantized_linear_argmax(
        *(num_rows, largest, tokens, dtype, x, row_stride("quantized_linear_argmax", x)),
        *(weight.table, len(weight.parts), bias, num_inputs),
    )
    return tokens, largest
