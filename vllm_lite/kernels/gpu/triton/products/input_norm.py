"""Root-mean-square normalisation of the inputs within a product of few rows, in Triton.

Each program sums the squares of whole rows before it multiplies its inputs of them, which takes
less time than a kernel in front. Rounds where `norm` rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import chained
from vllm_lite.kernels.reference.norm import InputNorm

# Of a thread, for three programs of eight warps on a processor: an H200 takes 1.5 % less for a step
# of an 8B model than with two programs of 96. Older targets would spill.
_MOST_REGISTERS = 80
# Inputs whose squares are summed at once.
_PIECE = 4096


class NormOperand(NamedTuple):
    """A kernel's argument; without a norm, other tensors stand for its own."""

    weight: Tensor
    residual: Tensor
    total: Tensor
    eps: float


def norm_operand(x: Tensor, norm: InputNorm | None) -> tuple[NormOperand, dict[str, Any]]:
    """The operand, and a kernel's constants; `total` is the sum of x [T, N] and the residual."""
    if norm is None:
        return NormOperand(x, x, x, 0.0), {"NORM": "none", "PIECE": 1}
    piece = min(_PIECE, next_power_of_2(x.shape[1]))
    constants: dict[str, Any] = {"PIECE": piece}
    if chained(x.device)["IS_CHAINED"]:
        constants["maxnreg"] = _MOST_REGISTERS
    if norm.residual is None:
        return NormOperand(norm.weight, x, x, norm.eps), {"NORM": "plain", **constants}
    # Other programs still read the residual when the first one writes.
    operand = NormOperand(norm.weight, norm.residual, x.new_empty(x.shape), norm.eps)
    return operand, {"NORM": "added", **constants}


@triton.jit
def norm_weights(norm, inputs, end, NORM: tl.constexpr):
    """The weights at `inputs` below `end`; without a norm, nothing that is used."""
    if NORM != "none":
        return tl.load(norm.weight + inputs, mask=inputs < end, other=0.0)
    else:
        return inputs


@triton.jit
def _sums(x_ptr, norm, place, mask, NORM: tl.constexpr):
    """Inputs at `place`, with the residual if there is one, rounded."""
    x = tl.load(x_ptr, mask=mask, other=0.0)
    if NORM == "added":
        other = tl.load(norm.residual + place, mask=mask, other=0.0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(x.dtype)
    return x


@triton.jit
def row_factor(x_row, norm, row, num_inputs, NORM: tl.constexpr, PIECE: tl.constexpr):
    """The factor of a row; the first program stores the sum with the residual."""
    if NORM == "none":
        return 1.0
    else:
        squares = 0.0
        for first in range(0, num_inputs, PIECE):
            columns = first + tl.arange(0, PIECE)
            mask = columns < num_inputs
            place = row * num_inputs + columns
            x = _sums(x_row + columns, norm, place, mask, NORM)
            if NORM == "added":
                is_first = columns * 0 + tl.program_id(0) + tl.program_id(1) == 0
                tl.store(norm.total + place, x, mask=mask & is_first)
            x = x.to(tl.float32)
            squares += tl.sum(x * x, axis=0)
        return tl.rsqrt(squares / num_inputs + norm.eps)


@triton.jit
def normed_inputs(x_row, norm, row, inputs, num_inputs, end, weights, factor, NORM: tl.constexpr):
    """A row's `inputs` below `end` as float32, normalised by its factor and `norm_weights`."""
    mask = inputs < end
    x = _sums(x_row + inputs, norm, row * num_inputs + inputs, mask, NORM)
    wide = x.to(tl.float32)
    if NORM != "none":
        wide = (wide * factor).to(weights.dtype).to(tl.float32) * weights.to(tl.float32)
        wide = wide.to(x.dtype).to(tl.float32)
    return wide
