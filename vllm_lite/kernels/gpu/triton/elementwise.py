"""Activations, scaled sums and rotary embeddings by Triton.

One program for each span of a row; a token's rotation is one program.
"""

from __future__ import annotations

from math import inf

import triton
import triton.language as tl
from torch import Tensor, empty_like

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import begin_next_and_wait, chained
from vllm_lite.kernels.gpu.triton.launch import launch

_BLOCK = 1024


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation `ACTIVATION` (a key of ACTIVATIONS) of float32 x."""
    if ACTIVATION == "silu":
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(y)) / 2 is the logistic function of 2 * y.
        bent = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        return x / (1.0 + tl.exp(-bent))
    elif ACTIVATION == "gelu_quick":
        return x / (1.0 + tl.exp(-1.702 * x))
    elif ACTIVATION == "tanh":
        return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    elif ACTIVATION == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-x))
    else:
        positive = tl.where(x < 0.0, 0.0, x)
        if ACTIVATION == "relu2":
            positive = positive * positive
        return positive


@triton.jit
def gated_product(gate, up, ACTIVATION: tl.constexpr):
    """act(gate) * up, float32; act(gate) is rounded to its storage type first."""
    return activated(gate.to(tl.float32), ACTIVATION).to(gate.dtype).to(tl.float32) * up.to(
        tl.float32
    )


@triton.jit
def activation_kernel(
    out_ptr,
    x_ptr,
    x_stride,
    out_stride,
    size,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    begin_next_and_wait(IS_CHAINED)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    x_ptrs = x_ptr + row * x_stride + columns
    x = tl.load(x_ptrs, mask=mask, other=0.0)
    if IS_GATED:
        up = tl.load(x_ptrs + size, mask=mask, other=0.0)
        result = gated_product(x, up, ACTIVATION)
    else:
        result = activated(x.to(tl.float32), ACTIVATION)
    tl.store(out_ptr + row * out_stride + columns, result, mask=mask)


@triton.jit
def xielu_kernel(
    out_ptr,
    x_ptr,
    x_stride,
    out_stride,
    size,
    alpha_p,
    alpha_n,
    beta,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    y = tl.minimum(x, eps)
    # e^y - 1 - y, summed where the difference would lose digits.
    near = y * (2.48015873e-5 + y * (2.75573192e-6 + y * 2.75573192e-7))
    near = y * (1.38888889e-3 + y * (1.98412698e-4 + near))
    near = 0.5 + y * (1.66666667e-1 + y * (4.16666667e-2 + y * (8.33333333e-3 + near)))
    bent = tl.where(y < -1.0, tl.exp(y) - 1.0 - y, y * y * near)
    bent = tl.where(x > 0.0, alpha_p * x * x, alpha_n * (bent + (y - x)))
    tl.store(out_ptr + row * out_stride + columns, bent + beta * x, mask=mask)


@triton.jit
def scaled_add_kernel(
    out_ptr,
    x_ptr,
    y_ptr,
    gates_ptr,
    x_stride,
    y_stride,
    out_stride,
    gates_stride,
    size,
    x_scale,
    y_scale,
    limit,
    HAS_Y: tl.constexpr,
    HAS_GATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    total = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    total *= x_scale
    if HAS_Y:
        y = tl.load(y_ptr + row * y_stride + columns, mask=mask, other=0.0).to(tl.float32)
        if HAS_GATES:
            y_scale /= 1.0 + tl.exp(-tl.load(gates_ptr + row * gates_stride))
        total += y * y_scale
    # A NaN stays one.
    total = tl.where(total > limit, limit, tl.where(total < -limit, -limit, total))
    tl.store(out_ptr + row * out_stride + columns, total, mask=mask)


@triton.jit
def mix_kernel(
    out_ptr,
    x_ptr,
    factors_ptr,
    base_ptr,
    weight_ptr,
    out_stride,
    out_row_stride,
    x_stride,
    x_row_stride,
    factors_stride,
    base_stride,
    base_row_stride,
    num_inputs,
    size,
    offset,
    HAS_FACTORS: tl.constexpr,
    HAS_BASE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    to = tl.program_id(1)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BASE:
        base_ptr += token * base_stride + to * base_row_stride
        total += tl.load(base_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    x_ptr += token * x_stride
    for i in range(num_inputs):
        x = tl.load(x_ptr + i * x_row_stride + columns, mask=mask, other=0.0).to(tl.float32)
        if HAS_FACTORS:
            place = token * factors_stride + to * num_inputs + i
            total += x * (tl.load(factors_ptr + place).to(tl.float32) + offset)
        else:
            total += x * offset
    if HAS_WEIGHT:
        total *= tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * out_stride + to * out_row_stride + columns, total, mask=mask)


def activation(x: Tensor, name: str, out: Tensor | None = None) -> Tensor:
    return _activate(x, name, empty_like(x) if out is None else out, is_gated=False)


def xielu(
    x: Tensor,
    alpha_p: float,
    alpha_n: float,
    beta: float,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    out = empty_like(x) if out is None else out
    num_rows, size = out.shape
    xielu_kernel[(num_rows, cdiv(size, _BLOCK))](
        out,
        x,
        x.stride(0),
        out.stride(0),
        size,
        float(alpha_p),
        float(alpha_n),
        float(beta),
        float(eps),
        BLOCK=_BLOCK,
    )
    return out


def act_and_mul(x: Tensor, name: str) -> Tensor:
    return _activate(x, name, x.new_empty((x.shape[0], x.shape[1] // 2)), is_gated=True)


def scaled_add(
    x: Tensor,
    y: Tensor | None = None,
    x_scale: float = 1.0,
    y_scale: float = 1.0,
    out: Tensor | None = None,
    limit: float = inf,
    gates: Tensor | None = None,
) -> Tensor:
    if out is None:
        out = empty_like(x)
    num_rows, size = x.shape
    other = x if y is None else y
    scaled_add_kernel[(num_rows, cdiv(size, _BLOCK))](
        out,
        x,
        other,
        other if gates is None else gates,
        x.stride(0),
        other.stride(0),
        out.stride(0),
        0 if gates is None else gates.stride(0),
        size,
        float(x_scale),
        float(y_scale),
        limit,
        HAS_Y=y is not None,
        HAS_GATES=gates is not None,
        BLOCK=_BLOCK,
    )
    return out


def mix_rows(
    x: Tensor,
    factors: Tensor | None = None,
    base: Tensor | None = None,
    offset: float = 0.0,
    weight: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    num_tokens, num_inputs, size = x.shape
    given = factors if base is None else base
    num_outputs = 1 if given is None else given.shape[1]
    if out is None:
        out = x.new_empty(num_tokens, num_outputs, size)
    other = x if base is None else base
    mix_kernel[(num_tokens, num_outputs, cdiv(size, _BLOCK))](
        out,
        x,
        x if factors is None else factors,
        other,
        x if weight is None else weight,
        out.stride(0),
        out.stride(1),
        x.stride(0),
        x.stride(1),
        0 if factors is None else factors.stride(0),
        other.stride(0),
        other.stride(1),
        num_inputs,
        size,
        float(offset),
        HAS_FACTORS=factors is not None,
        HAS_BASE=base is not None,
        HAS_WEIGHT=weight is not None,
        BLOCK=_BLOCK,
    )
    return out


def _activate(x: Tensor, name: str, out: Tensor, *, is_gated: bool) -> Tensor:
    num_rows, size = out.shape
    grid = (num_rows, cdiv(size, _BLOCK))
    launch(
        activation_kernel,
        grid,
        out,
        x,
        x.stride(0),
        out.stride(0),
        size,
        ACTIVATION=name,
        IS_GATED=is_gated,
        BLOCK=_BLOCK,
        **chained(x.device),
    )
    return out


@triton.jit
def rotate_heads(ptr, token_stride, head_stride, cos, sin, num_heads, HALF, BLOCK, HEADS, IS_NEOX):
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, BLOCK)
    for first_head in range(0, num_heads, HEADS):
        heads = first_head + tl.arange(0, HEADS)
        mask = (heads[:, None] < num_heads) & (pairs[None, :] < HALF)
        rows = ptr + token * token_stride + heads[:, None] * head_stride
        if IS_NEOX:
            first_ptrs = rows + pairs[None, :]
            second_ptrs = first_ptrs + HALF
        else:
            first_ptrs = rows + 2 * pairs[None, :]
            second_ptrs = first_ptrs + 1
        first = tl.load(first_ptrs, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(second_ptrs, mask=mask, other=0.0).to(tl.float32)
        tl.store(first_ptrs, first * cos - second * sin, mask=mask)
        tl.store(second_ptrs, second * cos + first * sin, mask=mask)


@triton.jit
def rotary_kernel(
    positions_ptr,
    query_ptr,
    key_ptr,
    cos_sin_ptr,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    num_heads,
    num_kv_heads,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    position = tl.load(positions_ptr + tl.program_id(0)).to(tl.int64)
    pairs = tl.arange(0, BLOCK)
    row = cos_sin_ptr + position * (2 * HALF)
    cos = tl.load(row + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sin = tl.load(row + HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    rotate_heads(
        query_ptr,
        query_token_stride,
        query_head_stride,
        cos,
        sin,
        num_heads,
        HALF,
        BLOCK,
        HEADS,
        IS_NEOX,
    )
    rotate_heads(
        key_ptr,
        key_token_stride,
        key_head_stride,
        cos,
        sin,
        num_kv_heads,
        HALF,
        BLOCK,
        HEADS,
        IS_NEOX,
    )


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    num_tokens, num_heads, _ = query.shape
    num_kv_heads = key.shape[1]
    half = cos_sin_cache.shape[1] // 2
    block = next_power_of_2(half)
    rotary_kernel[(num_tokens,)](
        positions,
        query,
        key,
        cos_sin_cache,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        num_heads,
        num_kv_heads,
        HALF=half,
        BLOCK=block,
        HEADS=max(1, min(next_power_of_2(num_heads), 2048 // block)),
        IS_NEOX=is_neox,
    )
