"""State-space layers by the compiled CPU kernels.

Slots may be any distance apart, as in memory that many layers share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import check_dense, dtype_number, refuse, row_stride
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.elementwise import KINDS


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
    num_tokens, num_channels = x.shape
    kernel_size = len(weight)
    if not 1 < kernel_size <= _cpu.MAX_CONV_KERNEL or (act is not None and act not in KINDS):
        raise refuse("causal_conv1d", f"takes kernels of 2 to {_cpu.MAX_CONV_KERNEL}")
    factors = [given for given in (before, after) if given is not None]
    if len(factors) == 1 or any(each.shape != x.shape for each in factors) or (factors and act):
        raise refuse("causal_conv1d", "takes two factors like x, and no activation then")
    check_dense("causal_conv1d", weight, torch.float32, kernel_size, num_channels)
    if bias is not None:
        check_dense("causal_conv1d", bias, torch.float32, num_channels)
    shape = (kernel_size - 1, num_channels)
    _check_states("causal_conv1d", states, shape, query_start_loc, state_in, state_out, num_tokens)
    strides = [row_stride("causal_conv1d", each) for each in factors]
    out = torch.empty(num_tokens, num_channels, dtype=x.dtype)
    calls.get().causal_conv1d(
        *(query_start_loc, state_in, len(state_in), num_tokens, len(states)),
        *(dtype_number("causal_conv1d", x, *factors), 0 if act is None else KINDS[act]),
        *(act is not None, x, before, after, weight, bias, states, state_out, out),
        *(num_channels, kernel_size, row_stride("causal_conv1d", x), *(strides or (0, 0))),
        states.stride(0),
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
    num_tokens, num_heads, head_size = x.shape
    _, num_groups, state_size = b.shape
    if dt.shape != (num_tokens, num_heads) or num_heads % num_groups or c.shape != b.shape:
        raise refuse("selective_scan", "x, dt, b and c do not fit together")
    for numbers in (a, d, dt_bias):
        check_dense("selective_scan", numbers, torch.float32, num_heads)
    shape = (num_heads, state_size, head_size)
    _check_states("selective_scan", states, shape, query_start_loc, state_in, state_out, num_tokens)
    out = torch.empty(num_tokens, num_heads, head_size, dtype=x.dtype)
    calls.get().selective_scan(
        *(query_start_loc, state_in, len(state_in), num_tokens, len(states)),
        *(dtype_number("selective_scan", x, dt, b, c), x, dt, b, c, a, d, dt_bias),
        *(states, state_out, out, num_heads, head_size, num_groups, state_size),
        *(_token_stride("selective_scan", x), row_stride("selective_scan", dt)),
        *(_token_stride("selective_scan", tensor) for tensor in (b, c)),
        *(states.stride(0), *dt_limit),
    )
    return out


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
    num_tokens, num_channels = x.shape
    state_size = b.shape[1]
    if {dt.shape, gate.shape} != {x.shape} or {b.shape, c.shape} != {(num_tokens, state_size)}:
        raise refuse("channel_scan", "x, dt, b, c and gate do not fit together")
    check_dense("channel_scan", a, torch.float32, state_size, num_channels)
    check_dense("channel_scan", d, torch.float32, num_channels)
    shape = (state_size, num_channels)
    given = (x, dt, gate, b, c)
    _check_states("channel_scan", states, shape, query_start_loc, state_in, state_out, num_tokens)
    out = torch.empty(num_tokens, num_channels, dtype=x.dtype)
    calls.get().channel_scan(
        *(query_start_loc, state_in, len(state_in), num_tokens, len(states)),
        *(dtype_number("channel_scan", *given), *given, a, d, states, state_out, out),
        *(num_channels, state_size, *(row_stride("channel_scan", tensor) for tensor in given)),
        states.stride(0),
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
    num_tokens, num_heads, value_size = v.shape
    _, num_key_heads, key_size = k.shape
    is_per_key = decay.dim() == 3
    decays = (num_heads, key_size) if is_per_key else (num_heads,)
    if q.shape != k.shape or num_heads % num_key_heads or len(k) != num_tokens:
        raise refuse("delta_rule", "q, k and v do not fit together")
    if beta.shape != (num_tokens, num_heads) or decay.shape != (num_tokens, *decays):
        raise refuse("delta_rule", "takes a beta, and one decay or K of them, for each head")
    check_dense("delta_rule", a, torch.float32, num_heads)
    check_dense("delta_rule", dt_bias, torch.float32, *decays)
    shape = (num_heads, key_size, value_size)
    _check_states("delta_rule", states, shape, query_start_loc, state_in, state_out, num_tokens)
    out = torch.empty(num_tokens, num_heads, value_size, dtype=v.dtype)
    calls.get().delta_rule(
        *(query_start_loc, state_in, len(state_in), num_tokens, len(states)),
        *(dtype_number("delta_rule", v, q, k, decay, beta), q, k, v, decay, beta, a, dt_bias),
        *(states, state_out, out, num_heads, num_key_heads, key_size, value_size),
        key_size if is_per_key else 1,
        *(_token_stride("delta_rule", tensor) for tensor in (q, k, v)),
        _token_stride("delta_rule", decay) if is_per_key else row_stride("delta_rule", decay),
        *(row_stride("delta_rule", beta), states.stride(0), beta_scale),
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
    num_tokens, num_channels = x.shape
    if {gate.shape, decay.shape} != {x.shape}:
        raise refuse("gated_recurrence", "x, gate and decay do not fit together")
    for numbers in (rate, gate_bias, decay_bias):
        check_dense("gated_recurrence", numbers, torch.float32, num_channels)
    shape = (num_channels,)
    given = (x, gate, decay)
    name = "gated_recurrence"
    _check_states(name, states, shape, query_start_loc, state_in, state_out, num_tokens)
    out = torch.empty(num_tokens, num_channels, dtype=x.dtype)
    calls.get().gated_recurrence(
        *(query_start_loc, state_in, len(state_in), num_tokens, len(states)),
        *(dtype_number(name, *given), *given, rate, gate_bias, decay_bias),
        *(states, state_out, out, num_channels, *(row_stride(name, tensor) for tensor in given)),
        states.stride(0),
    )
    return out


def gated_product(x: Tensor, gate: Tensor, act: str) -> Tensor:
    if gate.shape != x.shape or act not in KINDS:
        raise refuse("gated_product", "gate must match x")
    return _gated(x, gate, None, act)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    group_size: int,
    act: str = "silu",
    norm_first: bool = False,
) -> Tensor:
    size = x.shape[1]
    if gate.shape != x.shape or weight.shape != (size,) or not weight.is_contiguous():
        raise refuse("gated_rms_norm", "gate and weight must match x")
    if group_size < 1 or size % group_size or act not in KINDS:
        raise refuse("gated_rms_norm", "rows must be whole groups")
    return _gated(x, gate, weight, act, norm_first, group_size, eps)


def _gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    act: str,
    norm_first: bool = False,
    group_size: int = 1,
    eps: float = 0.0,
) -> Tensor:
    num_rows, size = x.shape
    out = torch.empty(num_rows, size, dtype=x.dtype)
    dtype = dtype_number("gated_rms_norm", x, gate, *(() if weight is None else (weight,)))
    strides = (row_stride("gated_rms_norm", tensor) for tensor in (x, gate))
    calls.get().gated_rms_norm(
        *(num_rows, dtype, KINDS[act], norm_first, x, gate, weight, out),
        *(size, group_size, *strides, eps),
    )
    return out


def _check_states(
    operation: str,
    states: Tensor,
    shape: Sequence[int],
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    num_tokens: int,
) -> None:
    """Refuse states unless they are [S, *shape], with dense requests' bounds and slot indices."""
    if states.shape[1:] != torch.Size(shape) or states.dtype != torch.float32:
        raise refuse(operation, f"states must be float32, of {list(shape)} each")
    if len(states) and not states[0].is_contiguous():
        raise refuse(operation, "a slot's state must be dense")
    check_dense(operation, query_start_loc, torch.int32, len(state_in) + 1)
    check_dense(operation, state_in, torch.int32, len(state_in))
    check_dense(operation, state_out, torch.int32, num_tokens)


def _token_stride(operation: str, tensor: Tensor) -> int:
    """The token stride of [T, H, D] with dense tokens."""
    _, num_heads, size = tensor.shape
    if (tensor.stride(2) != 1 < size) or (tensor.stride(1) != size and num_heads > 1):
        raise refuse(operation, "takes heads whose tokens are dense")
    return tensor.stride(0)
