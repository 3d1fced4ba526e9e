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
    act: str = "silu",
) -> Tensor:
    num_tokens, num_channels = x.shape
    kernel_size = len(weight)
    if not 1 < kernel_size <= _cpu.MAX_CONV_KERNEL or act not in KINDS:
        raise refuse("causal_conv1d", f"takes kernels of 2 to {_cpu.MAX_CONV_KERNEL}")
    check_dense("causal_conv1d", weight, torch.float32, kernel_size, num_channels)
    if bias is not None:
        check_dense("causal_conv1d", bias, torch.float32, num_channels)
    shape = (kernel_size - 1, num_channels)
    out = torch.empty(num_tokens, num_channels, dtype=x.dtype)
    calls.get().causal_conv1d(
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        *_state_places(
            "causal_conv1d", states, shape, query_start_loc, state_in, state_out, num_tokens
        ),
        out.data_ptr(),
        dtype_number("causal_conv1d", x),
        KINDS[act],
        num_tokens,
        len(state_in),
        len(states),
        num_channels,
        kernel_size,
        row_stride("causal_conv1d", x),
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
    out = torch.empty(num_tokens, num_heads, head_size, dtype=x.dtype)
    calls.get().selective_scan(
        *(tensor.data_ptr() for tensor in (x, dt, b, c, a, d, dt_bias)),
        *_state_places(
            "selective_scan", states, shape, query_start_loc, state_in, state_out, num_tokens
        ),
        out.data_ptr(),
        dtype_number("selective_scan", x, dt, b, c),
        num_tokens,
        len(state_in),
        len(states),
        num_heads,
        head_size,
        num_groups,
        state_size,
        _token_stride(x),
        row_stride("selective_scan", dt),
        _token_stride(b),
        _token_stride(c),
        states.stride(0),
        *dt_limit,
    )
    return out


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, group_size: int, act: str = "silu"
) -> Tensor:
    num_rows, size = x.shape
    if gate.shape != x.shape or weight.shape != (size,) or not weight.is_contiguous():
        raise refuse("gated_rms_norm", "gate and weight must match x")
    if group_size < 1 or size % group_size or act not in KINDS:
        raise refuse("gated_rms_norm", "rows must be whole groups")
    out = torch.empty(num_rows, size, dtype=x.dtype)
    calls.get().gated_rms_norm(
        x.data_ptr(),
        gate.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        dtype_number("gated_rms_norm", x, gate, weight),
        KINDS[act],
        num_rows,
        size,
        group_size,
        row_stride("gated_rms_norm", x),
        row_stride("gated_rms_norm", gate),
        eps,
    )
    return out


def _state_places(
    operation: str,
    states: Tensor,
    shape: Sequence[int],
    query_start_loc: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    num_tokens: int,
) -> tuple[int, int, int, int]:
    """Check and return addresses of states [S, *shape], requests' bounds and slot indices."""
    if states.shape[1:] != torch.Size(shape) or states.dtype != torch.float32:
        raise refuse(operation, f"states must be float32, of {list(shape)} each")
    if len(states) and not states[0].is_contiguous():
        raise refuse(operation, "a slot's state must be dense")
    check_dense(operation, query_start_loc, torch.int32, len(state_in) + 1)
    check_dense(operation, state_in, torch.int32, len(state_in))
    check_dense(operation, state_out, torch.int32, num_tokens)
    return (
        states.data_ptr(),
        query_start_loc.data_ptr(),
        state_in.data_ptr(),
        state_out.data_ptr(),
    )


def _token_stride(tensor: Tensor) -> int:
    """The token stride of [T, H, D] with dense tokens."""
    _, num_heads, size = tensor.shape
    if (tensor.stride(2) != 1 < size) or (tensor.stride(1) != size and num_heads > 1):
        raise refuse("selective_scan", "takes x, b and c whose tokens are dense")
    return tensor.stride(0)
