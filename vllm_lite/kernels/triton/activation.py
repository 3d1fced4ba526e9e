"""Gated activations by Triton: each program does one stretch of one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.reference import PackedLinear, linear

_BLOCK = 1024


@triton.jit
def gated_product(gate, up, ACTIVATION: tl.constexpr):
    """act(gate) * up, float32; act(gate) is rounded to its storage type first."""
    wide = gate.to(tl.float32)
    if ACTIVATION == "silu":
        activated = wide / (1.0 + tl.exp(-wide))
    elif ACTIVATION == "gelu":
        activated = 0.5 * wide * (1.0 + tl.erf(wide * 0.7071067811865476))
    else:
        # (1 + tanh(y)) / 2 is the logistic function of 2 * y.
        bent = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
        activated = wide / (1.0 + tl.exp(-bent))
    return activated.to(gate.dtype).to(tl.float32) * up.to(tl.float32)


@triton.jit
def gated_kernel(out_ptr, x_ptr, x_stride, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    gate_ptrs = x_ptr + row * x_stride + columns
    gate = tl.load(gate_ptrs, mask=mask, other=0.0)
    up = tl.load(gate_ptrs + size, mask=mask, other=0.0)
    tl.store(out_ptr + row * size + columns, gated_product(gate, up, ACTIVATION), mask=mask)


def silu_and_mul(x: Tensor) -> Tensor:
    return _gated(x, "silu")


def gated_linear(x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
    return silu_and_mul(linear(x, weight, bias))


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    return _gated(x, gelu_name(approximate))


def gelu_name(approximate: str) -> str:
    """What kernels call a way of computing it."""
    return "gelu" if approximate == "none" else "gelu_tanh"


def _gated(x: Tensor, activation: str) -> Tensor:
    num_rows, doubled = x.shape
    size = doubled // 2
    out = x.new_empty((num_rows, size))
    grid = (num_rows, triton.cdiv(size, _BLOCK))
    gated_kernel[grid](out, x, x.stride(0), size, ACTIVATION=activation, BLOCK=_BLOCK)
    return out
