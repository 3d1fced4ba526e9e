"""Shared by products of few rows: the outputs of a program, and how it ends.

A program has a part of the inputs and LANES * SPAN outputs: its threads are divided among LANES
of them at a time, and each thread has SPAN, one after another, whose sums of float32 stay in it
until the end. If an activation follows, half of a thread's outputs are gates, and the others what
these multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import chained
from vllm_lite.kernels.gpu.triton.elementwise import gated_product
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.products.linear import add_parts

# Bits that a thread reads at once.
_READ_BITS = 128
# Programs for each processor, as an H200 is fastest: of many outputs, and of few.
_PROGRAMS = 4
_PROGRAMS_OF_FEW = 2
_FEW_OUTPUTS = 16
_MOST_PARTS = 16


@triton.jit
def no_tensors():
    """An empty tuple, to add tuples to."""
    return ()


@triton.jit
def by_four(x):
    """x [threads, 4n] as four tensors [threads, n]: the first of every four columns, and so on."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 4, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def sum_of_products(numbers, xs):
    """The sums [threads] of products of two tuples of tensors [threads, n]."""
    COUNT: tl.constexpr = len(xs)
    total = numbers[0] * xs[0]
    for i in tl.static_range(1, COUNT):
        total += numbers[i] * xs[i]
    return tl.sum(total, axis=1)


@triton.jit
def output_of(i, lane, num_outputs, LANES, SPAN, IS_GATED: tl.constexpr):
    """A thread's output number `i`; not below `num_outputs` where there is none.

    With IS_GATED the first SPAN / 2 are gates, in the weight's first half.
    """
    tile = tl.program_id(0)
    if IS_GATED:
        EACH: tl.constexpr = SPAN // 2
        size = num_outputs // 2
        output = (tile * EACH + i % EACH) * LANES + lane
        return tl.where(output < size, output + i // EACH * size, num_outputs)
    else:
        return (tile * SPAN + i) * LANES + lane


@triton.jit
def totals_of(sums, LANES: tl.constexpr, INNER: tl.constexpr):
    """Totals [LANES, n] of n tensors [threads], where INNER neighbours are in one lane."""
    THREADS: tl.constexpr = sums[0].shape[0]
    COUNT: tl.constexpr = len(sums)
    for _ in tl.static_range(5):  # as many as there can be
        if len(sums) > 1:
            joined = no_tensors()
            for i in tl.static_range(len(sums) // 2):
                joined += (tl.join(sums[i], sums[len(sums) // 2 + i]),)
            sums = joined
    by_lane = tl.reshape(sums[0], [THREADS // (LANES * INNER), LANES, INNER, COUNT])
    return tl.sum(tl.sum(by_lane, axis=2), axis=0)


@triton.jit
def places_of(num_outputs, LANES, SPAN, ROWS: tl.constexpr, IS_GATED: tl.constexpr):
    """The outputs and rows [LANES, ROWS * SPAN] of totals, a row's beside each other."""
    columns = tl.arange(0, ROWS * SPAN)[None, :]
    lane = tl.arange(0, LANES)[:, None]
    outputs = output_of(columns % SPAN, lane, num_outputs, LANES, SPAN, IS_GATED)
    return outputs, columns // SPAN + 0 * lane


@triton.jit
def _halves(x, SPAN: tl.constexpr):
    """The first and the second half of every SPAN columns of x."""
    return tl.split(tl.permute(tl.reshape(x, [x.numel // SPAN, 2, SPAN // 2]), [0, 2, 1]))


@triton.jit
def store_totals(
    out_ptr,
    totals,
    outputs,
    rows,
    bias_ptr,
    num_rows,
    num_outputs,
    HAS_BIAS: tl.constexpr,
    SPAN: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Store totals of `places_of`, with the bias and after the activation."""
    mask = (outputs < num_outputs) & (rows < num_rows)
    if HAS_BIAS:
        totals += tl.load(bias_ptr + outputs, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION != "":
        gate, up = _halves(totals.to(out_ptr.dtype.element_ty), SPAN)
        totals = gated_product(gate, up, ACTIVATION)
        outputs, _ = _halves(outputs, SPAN)
        rows, _ = _halves(rows, SPAN)
        mask = (outputs < num_outputs) & (rows < num_rows)
        num_outputs //= 2
    row = tl.program_id(1).to(tl.int64) * num_rows + rows
    tl.store(out_ptr + row * num_outputs + outputs, totals, mask=mask)


@dataclass(frozen=True, slots=True)
class CutLimits:
    """A kernel's warps, the bits of a weight, and of LANES and SPAN the most and the fewest."""

    num_warps: int
    bits: int
    lanes: tuple[int, int]
    spans: tuple[int, int]

    def step(self, lanes: int) -> int:
        """Inputs that a program's threads read of an output at once."""
        return 32 * self.num_warps // lanes * (_READ_BITS // self.bits)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is divided: LANES, SPAN, and programs by outputs and by inputs."""

    lanes: int
    span: int
    tiles: int
    parts: int
    steps: int  # of a part

    @classmethod
    @cache
    def of(cls, shape: tuple[int, int], limits: CutLimits, processors: int) -> Cut:
        """Enough programs for all processors: of fewer outputs each, and of parts only then.

        The weight is of `shape`. No step is made longer than the inputs.
        """
        num_outputs, num_inputs = shape
        lanes, span = limits.lanes[0], limits.spans[0]

        def are_too_few() -> bool:
            wanted = _PROGRAMS if lanes * span > _FEW_OUTPUTS else _PROGRAMS_OF_FEW
            tiles = cdiv(num_outputs, lanes * span)
            return tiles < wanted * processors

        while are_too_few():
            if lanes > limits.lanes[1] and limits.step(lanes) < num_inputs:
                lanes //= 2
            elif span > limits.spans[1]:
                span //= 2
            else:
                break
        tiles = cdiv(num_outputs, lanes * span)
        steps = cdiv(num_inputs, limits.step(lanes))
        parts = min(_PROGRAMS_OF_FEW * processors // tiles, steps, _MOST_PARTS)
        each = cdiv(steps, max(1, parts))
        return cls(lanes, span, tiles, cdiv(steps, each), each)


def multiply(
    kernel: Any,
    x: Tensor,
    weight_shape: tuple[int, int],
    limits: CutLimits,
    operands: tuple[Any, ...],
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str,
    **constants: Any,
) -> Tensor:
    """Launch `kernel` for x [T, N] and a weight [M, N] in `operands`: [T, M].

    With an activation, "" for none, [T, M / 2].
    """
    num_rows, (num_outputs, num_inputs) = x.shape[0], weight_shape
    processors = tuning.processor_count(x.device)
    cut = Cut.of(weight_shape, limits, processors)
    columns = num_outputs // 2 if activation else num_outputs
    out = x.new_empty((num_rows, columns), dtype=out_dtype)
    is_whole = cut.parts == 1
    to = out if is_whole else out.new_empty((cut.parts, num_rows, num_outputs), dtype=torch.float32)
    launch(
        kernel,
        (cut.tiles, cut.parts),
        to,
        x,
        *operands,
        x if bias is None else bias,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        cut.steps,
        HAS_BIAS=bias is not None and is_whole,
        ACTIVATION=activation if is_whole else "",
        ROWS=next_power_of_2(num_rows),
        SPAN=cut.span,
        LANES=cut.lanes,
        num_warps=limits.num_warps,
        **constants,
        **chained(x.device),
    )
    if not is_whole:
        add_parts(out, to, bias, activation)
    return out
