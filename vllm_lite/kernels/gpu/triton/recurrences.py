"""States of channels and the gated delta rule by Triton; see state.py beside this."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, zeros

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.elementwise import activated
from vllm_lite.kernels.gpu.triton.state import softplus

_STATE_ELEMENTS = 4096
_SCANNED_ELEMENTS = 1024
_CHANNELS = 128


@triton.jit
def channel_scan_kernel(
    out_ptr,
    x_ptr,
    dt_ptr,
    gate_ptr,
    b_ptr,
    c_ptr,
    a_ptr,
    d_ptr,
    states_ptr,
    query_start_loc_ptr,
    state_in_ptr,
    state_out_ptr,
    x_stride,
    dt_stride,
    gate_stride,
    b_stride,
    c_stride,
    slot_stride,
    num_channels,
    state_size,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    end = tl.load(query_start_loc_ptr + request + 1).to(tl.int64)
    slot = tl.load(state_in_ptr + request).to(tl.int64)
    rows = tl.arange(0, STATE)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row, is_channel = rows < state_size, channels < num_channels
    places = rows[:, None] * num_channels + channels[None, :]
    mask = is_row[:, None] & is_channel[None, :]
    taken = (rows < tl.where(slot < 0, 0, state_size))[:, None] & is_channel[None, :]
    state = tl.load(states_ptr + slot * slot_stride + places, mask=taken, other=0.0)
    a = tl.load(a_ptr + places, mask=mask, other=0.0)
    d = tl.load(d_ptr + channels, mask=is_channel, other=0.0)
    for token in range(start, end):
        x = tl.load(x_ptr + token * x_stride + channels, mask=is_channel, other=0.0)
        dt = tl.load(dt_ptr + token * dt_stride + channels, mask=is_channel, other=0.0)
        gate = tl.load(gate_ptr + token * gate_stride + channels, mask=is_channel, other=0.0)
        b = tl.load(b_ptr + token * b_stride + rows, mask=is_row, other=0.0).to(tl.float32)
        c = tl.load(c_ptr + token * c_stride + rows, mask=is_row, other=0.0).to(tl.float32)
        x, gate, step = x.to(tl.float32), gate.to(tl.float32), softplus(dt.to(tl.float32))
        state = state * tl.exp(step[None, :] * a) + b[:, None] * (x * step)[None, :]
        y = tl.sum(state * c[:, None], axis=0) + x * d
        out = out_ptr + token * num_channels + channels
        tl.store(out, y * activated(gate, "silu"), mask=is_channel)
        written = tl.load(state_out_ptr + token).to(tl.int64)
        target = states_ptr + written * slot_stride + places
        taken = (rows < tl.where(written < 0, 0, state_size))[:, None] & is_channel[None, :]
        tl.store(target, state, mask=taken)


@triton.jit
def gated_recurrence_kernel(
    out_ptr,
    x_ptr,
    gate_ptr,
    decay_ptr,
    rate_ptr,
    gate_bias_ptr,
    decay_bias_ptr,
    states_ptr,
    query_start_loc_ptr,
    state_in_ptr,
    state_out_ptr,
    x_stride,
    gate_stride,
    decay_stride,
    slot_stride,
    num_channels,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    end = tl.load(query_start_loc_ptr + request + 1).to(tl.int64)
    slot = tl.load(state_in_ptr + request).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    taken = channels < tl.where(slot < 0, 0, num_channels)
    state = tl.load(states_ptr + slot * slot_stride + channels, mask=taken, other=0.0)
    rate = tl.load(rate_ptr + channels, mask=mask, other=0.0)
    gate_bias = tl.load(gate_bias_ptr + channels, mask=mask, other=0.0)
    decay_bias = tl.load(decay_bias_ptr + channels, mask=mask, other=0.0)
    for token in range(start, end):
        x = tl.load(x_ptr + token * x_stride + channels, mask=mask, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + token * gate_stride + channels, mask=mask, other=0.0)
        decay = tl.load(decay_ptr + token * decay_stride + channels, mask=mask, other=0.0)
        given = activated(gate.to(tl.float32) + gate_bias, "sigmoid") * x
        y = 2.0 * rate * activated(decay.to(tl.float32) + decay_bias, "sigmoid")
        # 1 - e^y, by its series where the difference would lose digits.
        near = 1.0 + y / 3.0 * (1.0 + y / 4.0 * (1.0 + y / 5.0 * (1.0 + y / 6.0)))
        root = tl.sqrt(tl.where(y > -0.25, -y * (1.0 + y / 2.0 * near), 1.0 - tl.exp(y)))
        root = tl.where((slot < 0) & (token == start), 1.0, root)
        state = state * tl.exp(0.5 * y) + root * given
        tl.store(out_ptr + token * num_channels + channels, state, mask=mask)
        written = tl.load(state_out_ptr + token).to(tl.int64)
        taken = channels < tl.where(written < 0, 0, num_channels)
        tl.store(states_ptr + written * slot_stride + channels, state, mask=taken)


@triton.jit
def unit_length(x, scale):
    """Float32 x, scaled to length 1 and by `scale`."""
    x = x.to(tl.float32)
    return x * (scale * tl.rsqrt(tl.sum(x * x, axis=0) + 1e-6))


@triton.jit
def delta_rule_kernel(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    beta_ptr,
    a_ptr,
    dt_bias_ptr,
    states_ptr,
    query_start_loc_ptr,
    state_in_ptr,
    state_out_ptr,
    q_stride,
    k_stride,
    v_stride,
    decay_stride,
    beta_stride,
    slot_stride,
    num_heads,
    heads_per_group,
    key_size,
    value_size,
    query_scale,
    beta_scale,
    IS_PER_KEY: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    end = tl.load(query_start_loc_ptr + request + 1).to(tl.int64)
    slot = tl.load(state_in_ptr + request).to(tl.int64)
    rows = tl.arange(0, KEYS)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    is_row, is_column = rows < key_size, columns < value_size
    places = (head * key_size + rows[:, None]) * value_size + columns[None, :]
    taken = (rows < tl.where(slot < 0, 0, key_size))[:, None] & is_column[None, :]
    state = tl.load(states_ptr + slot * slot_stride + places, mask=taken, other=0.0)
    a = tl.load(a_ptr + head)
    first = head // heads_per_group * key_size
    if IS_PER_KEY:
        decays = head * key_size + rows
        bias = tl.load(dt_bias_ptr + decays, mask=is_row, other=0.0)
    else:
        decays = head + tl.zeros([KEYS], tl.int32)
        bias = tl.load(dt_bias_ptr + decays)
    for token in range(start, end):
        q = tl.load(q_ptr + token * q_stride + first + rows, mask=is_row, other=0.0)
        k = tl.load(k_ptr + token * k_stride + first + rows, mask=is_row, other=0.0)
        q, k = unit_length(q, query_scale), unit_length(k, 1.0)
        row = v_ptr + token * v_stride + head * value_size
        v = tl.load(row + columns, mask=is_column, other=0.0).to(tl.float32)
        given = tl.load(decay_ptr + token * decay_stride + decays, mask=is_row, other=0.0)
        kept = tl.exp(a * softplus(given.to(tl.float32) + bias))
        beta = tl.load(beta_ptr + token * beta_stride + head).to(tl.float32)
        share = beta_scale * activated(beta, "sigmoid")
        state = state * kept[:, None]
        known = tl.sum(state * k[:, None], axis=0)
        state += k[:, None] * ((v - known) * share)[None, :]
        y = tl.sum(state * q[:, None], axis=0)
        out = out_ptr + (token * num_heads + head) * value_size + columns
        tl.store(out, y, mask=is_column)
        written = tl.load(state_out_ptr + token).to(tl.int64)
        target = states_ptr + written * slot_stride + places
        taken = (rows < tl.where(written < 0, 0, key_size))[:, None] & is_column[None, :]
        tl.store(target, state, mask=taken)


def channel_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    gate: Tensor,
    states: Tensor,
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    *,
    a: Tensor,
    d: Tensor,
) -> Tensor:
    num_channels, state_size = x.shape[1], b.shape[1]
    out = zeros(x.shape, dtype=x.dtype, device=x.device)
    rows = next_power_of_2(state_size)
    block = min(max(1, _SCANNED_ELEMENTS // rows), next_power_of_2(num_channels))
    given = (x, dt, gate, b, c)
    channel_scan_kernel[(len(state_in), cdiv(num_channels, block))](
        out,
        *given,
        a,
        d,
        states,
        query_start_loc,
        state_in,
        state_out,
        *(tensor.stride(0) for tensor in given),
        states.stride(0),
        num_channels,
        state_size,
        STATE=rows,
        BLOCK=block,
        num_warps=2,
    )
    return out


def gated_recurrence(
    x: Tensor,
    gate: Tensor,
    decay: Tensor,
    states: Tensor,
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    *,
    rate: Tensor,
    gate_bias: Tensor,
    decay_bias: Tensor,
) -> Tensor:
    num_channels, given = x.shape[1], (x, gate, decay)
    out = zeros(x.shape, dtype=x.dtype, device=x.device)
    block = min(_CHANNELS, next_power_of_2(num_channels))
    gated_recurrence_kernel[(len(state_in), cdiv(num_channels, block))](
        out,
        *given,
        rate,
        gate_bias,
        decay_bias,
        states,
        query_start_loc,
        state_in,
        state_out,
        *(tensor.stride(0) for tensor in given),
        states.stride(0),
        num_channels,
        BLOCK=block,
        num_warps=2,
    )
    return out


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    *,
    a: Tensor,
    dt_bias: Tensor,
    beta_scale: float = 1.0,
) -> Tensor:
    _, num_heads, value_size = v.shape
    _, num_key_heads, key_size = k.shape
    out = zeros(v.shape, dtype=v.dtype, device=v.device)
    rows = next_power_of_2(key_size)
    block = min(max(1, _STATE_ELEMENTS // rows), next_power_of_2(value_size))
    given = (q, k, v, decay, beta)
    delta_rule_kernel[(len(state_in), num_heads, cdiv(value_size, block))](
        out,
        *given,
        a,
        dt_bias,
        states,
        query_start_loc,
        state_in,
        state_out,
        *(tensor.stride(0) for tensor in given),
        states.stride(0),
        num_heads,
        num_heads // num_key_heads,
        key_size,
        value_size,
        key_size**-0.5,
        float(beta_scale),
        IS_PER_KEY=decay.dim() == 3,
        KEYS=rows,
        BLOCK=block,
        num_warps=4,
    )
    return out
