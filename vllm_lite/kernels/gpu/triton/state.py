"""State-space layers by Triton: a program processes a request's tokens in order.

It holds some channels of a convolution, or some columns of one head's state, in registers from
token to token.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, zeros

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.elementwise import activated

_CHANNELS = 256
_STATE_ELEMENTS = 4096


@triton.jit
def causal_conv_kernel(
    out_ptr,
    x_ptr,
    before_ptr,
    after_ptr,
    weight_ptr,
    bias_ptr,
    states_ptr,
    query_start_loc_ptr,
    state_in_ptr,
    state_out_ptr,
    x_stride,
    before_stride,
    after_stride,
    slot_stride,
    num_channels,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    end = tl.load(query_start_loc_ptr + request + 1).to(tl.int64)
    slot = tl.load(state_in_ptr + request).to(tl.int64)
    # A channel's window is a column: first the state, then in row KERNEL - 1 the input.
    rows = tl.arange(0, ROWS)[:, None]
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_channel = channels < num_channels
    places = rows * num_channels + channels
    taken = (rows < tl.where(slot < 0, 0, KERNEL - 1)) & is_channel
    window = tl.load(states_ptr + slot * slot_stride + places, mask=taken, other=0.0)
    weight = tl.load(weight_ptr + places, mask=(rows < KERNEL) & is_channel, other=0.0)
    later = tl.minimum(rows + 1, ROWS - 1) + tl.zeros([ROWS, BLOCK], tl.int32)
    bias = tl.zeros([1, BLOCK], tl.float32)
    if HAS_BIAS:
        bias += tl.load(bias_ptr + channels, mask=is_channel, other=0.0)
    for token in range(start, end):
        row = x_ptr + token * x_stride + channels
        x = tl.load(row, mask=is_channel, other=0.0).to(tl.float32)
        if HAS_FACTORS:
            before = before_ptr + token * before_stride + channels
            x *= tl.load(before, mask=is_channel, other=0.0).to(tl.float32)
        window = tl.where(rows == KERNEL - 1, x, window)
        mixed = tl.sum(window * weight, axis=0)[None, :] + bias
        if HAS_FACTORS:
            after = after_ptr + token * after_stride + channels
            mixed *= tl.load(after, mask=is_channel, other=0.0).to(tl.float32)
        elif ACTIVATION != "none":
            mixed = activated(mixed, ACTIVATION)
        out = out_ptr + token * num_channels + channels
        tl.store(out, mixed, mask=is_channel)
        window = tl.gather(window, later, 0)
        written = tl.load(state_out_ptr + token).to(tl.int64)
        target = states_ptr + written * slot_stride + places
        taken = (rows < tl.where(written < 0, 0, KERNEL - 1)) & is_channel
        tl.store(target, window, mask=taken)


@triton.jit
def softplus(x):
    """log(1 + e^x), accurate for small e^x."""
    power = tl.exp(tl.minimum(x, 20.0))
    shifted = 1.0 + power
    small = tl.where(shifted == 1.0, power, tl.log(shifted) * (power / (shifted - 1.0)))
    return tl.where(x > 20.0, x, small)


@triton.jit
def selective_scan_kernel(
    out_ptr,
    x_ptr,
    dt_ptr,
    b_ptr,
    c_ptr,
    a_ptr,
    d_ptr,
    dt_bias_ptr,
    states_ptr,
    query_start_loc_ptr,
    state_in_ptr,
    state_out_ptr,
    x_stride,
    dt_stride,
    b_stride,
    c_stride,
    slot_stride,
    num_heads,
    heads_per_group,
    head_size,
    state_size,
    least_step,
    most_step,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    end = tl.load(query_start_loc_ptr + request + 1).to(tl.int64)
    slot = tl.load(state_in_ptr + request).to(tl.int64)
    rows = tl.arange(0, STATE)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    is_row, is_column = rows < state_size, columns < head_size
    places = (head * state_size + rows[:, None]) * head_size + columns[None, :]
    taken = (rows < tl.where(slot < 0, 0, state_size))[:, None] & is_column[None, :]
    state = tl.load(states_ptr + slot * slot_stride + places, mask=taken, other=0.0)
    a, d = tl.load(a_ptr + head), tl.load(d_ptr + head)
    dt_bias = tl.load(dt_bias_ptr + head)
    first = head // heads_per_group * state_size
    for token in range(start, end):
        x_row = x_ptr + token * x_stride + head * head_size
        x = tl.load(x_row + columns, mask=is_column, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + token * b_stride + first + rows, mask=is_row, other=0.0)
        c = tl.load(c_ptr + token * c_stride + first + rows, mask=is_row, other=0.0)
        step = tl.load(dt_ptr + token * dt_stride + head).to(tl.float32) + dt_bias
        step = softplus(step)
        step = tl.where(step < least_step, least_step, step)
        step = tl.where(step > most_step, most_step, step)
        state = state * tl.exp(step * a) + b.to(tl.float32)[:, None] * (x * step)[None, :]
        y = tl.sum(state * c.to(tl.float32)[:, None], axis=0) + x * d
        out = out_ptr + (token * num_heads + head) * head_size + columns
        tl.store(out, y, mask=is_column)
        written = tl.load(state_out_ptr + token).to(tl.int64)
        target = states_ptr + written * slot_stride + places
        taken = (rows < tl.where(written < 0, 0, state_size))[:, None] & is_column[None, :]
        tl.store(target, state, mask=taken)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    act: str | None = "silu",
    *,
    before: Tensor | None = None,
    after: Tensor | None = None,
) -> Tensor:
    num_channels = x.shape[1]
    has_factors = before is not None and after is not None
    factors = (before, after) if before is not None and after is not None else (x, x)
    out = zeros(x.shape, dtype=x.dtype, device=x.device)
    block = min(_CHANNELS, next_power_of_2(num_channels))
    causal_conv_kernel[(len(state_in), cdiv(num_channels, block))](
        out,
        x,
        *factors,
        weight,
        weight if bias is None else bias,
        states,
        query_start_loc,
        state_in,
        state_out,
        x.stride(0),
        *(each.stride(0) for each in factors),
        states.stride(0),
        num_channels,
        KERNEL=len(weight),
        ROWS=next_power_of_2(len(weight)),
        HAS_BIAS=bias is not None,
        HAS_FACTORS=has_factors,
        ACTIVATION="none" if act is None else act,
        BLOCK=block,
        num_warps=2,
    )
    return out


def selective_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    states: Tensor,
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    *,
    a: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
) -> Tensor:
    _, num_heads, head_size = x.shape
    _, num_groups, state_size = b.shape
    out = zeros(x.shape, dtype=x.dtype, device=x.device)
    rows = next_power_of_2(state_size)
    block = min(max(1, _STATE_ELEMENTS // rows), next_power_of_2(head_size))
    selective_scan_kernel[(len(state_in), num_heads, cdiv(head_size, block))](
        out,
        x,
        dt,
        b,
        c,
        a,
        d,
        dt_bias,
        states,
        query_start_loc,
        state_in,
        state_out,
        x.stride(0),
        dt.stride(0),
        b.stride(0),
        c.stride(0),
        states.stride(0),
        num_heads,
        num_heads // num_groups,
        head_size,
        state_size,
        float(dt_limit[0]),
        float(dt_limit[1]),
        STATE=rows,
        BLOCK=block,
        num_warps=4,
    )
    return out
