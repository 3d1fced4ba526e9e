"""Linear layers of heads by the compiled CPU kernels."""

from __future__ import annotations

from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import dtype_number, refuse
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.mapped_memory import packed_weights
from vllm_lite.kernels.reference.head_linear import PackedHeads


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
