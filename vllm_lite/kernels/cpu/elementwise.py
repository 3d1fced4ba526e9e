"""Activations, scaled sums and rotary embeddings by the compiled CPU kernels."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from vllm_lite.kernels.cpu.arguments import (
    check_dense,
    dtype_number,
    refuse,
    row_stride,
    row_strides,
)
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.reference.elementwise import ACTIVATIONS

KINDS = {name: number for number, name in enumerate(ACTIVATIONS)}


def activation(x: Tensor, name: str, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    elif out.shape != x.shape:
        raise refuse("activation", "out must match x")
    return _activate("activation", x, out, False, _kind("activation", name))


def xielu(
    x: Tensor,
    alpha_p: float,
    alpha_n: float,
    beta: float,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    elif out.shape != x.shape:
        raise refuse("xielu", "out must match x")
    if not eps <= 0:
        raise refuse("xielu", f"eps is {eps}, more than 0")
    return _activate("xielu", x, out, False, len(KINDS), (alpha_p, alpha_n, beta, eps))


def act_and_mul(x: Tensor, name: str) -> Tensor:
    num_rows, doubled = x.shape
    if doubled % 2:
        raise refuse("act_and_mul", "takes rows of even size")
    out = x.new_empty((num_rows, doubled // 2))
    return _activate("act_and_mul", x, out, True, _kind("act_and_mul", name))


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
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    given = (x, out) if y is None else (x, out, y)
    if any(tensor.shape != x.shape for tensor in given):
        raise refuse("scaled_add", "y and out must match x")
    if gates is not None and (gates.shape != (len(x), 1) or gates.dtype != torch.float32):
        raise refuse("scaled_add", "gates must be [T, 1] float32")
    num_rows, size = x.shape
    calls.get().scaled_add(
        *(num_rows, dtype_number("scaled_add", *given), x, y, gates, out, size),
        row_stride("scaled_add", x),
        0 if y is None else row_stride("scaled_add", y),
        row_stride("scaled_add", out),
        0 if gates is None else gates.stride(0),
        *(x_scale, y_scale, limit),
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
    shape = (num_tokens, 1 if given is None else given.shape[1], size)
    if out is None:
        out = torch.empty(shape, dtype=x.dtype)
    if out.shape != shape or (base is not None and base.shape != shape):
        raise refuse("mix_rows", "base and out must match x and factors")
    if factors is not None and (
        factors.shape != (num_tokens, shape[1], num_inputs)
        or factors.stride(2) != 1
        or factors.stride(1) != num_inputs
    ):
        raise refuse("mix_rows", "factors must be [T, J, I], and a token's dense")
    if weight is not None and (weight.shape != (size,) or not weight.is_contiguous()):
        raise refuse("mix_rows", "weight must be [N]")
    tensors = [tensor for tensor in (x, factors, base, weight, out) if tensor is not None]
    calls.get().mix_rows(
        *(num_tokens, dtype_number("mix_rows", *tensors), x, factors, base, weight, out),
        *(num_inputs, shape[1], size, *row_strides("mix_rows", x)),
        0 if factors is None else factors.stride(0),
        *((0, 0) if base is None else row_strides("mix_rows", base)),
        *(*row_strides("mix_rows", out), offset),
    )
    return out


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = key.shape[1]
    num_positions, rot_dim = cos_sin_cache.shape
    if key.shape[0] != num_tokens or key.shape[2] != head_size or rot_dim > head_size:
        raise refuse("rotary_embedding", "query, key and cos_sin_cache do not fit together")
    if query.stride(2) != 1 or key.stride(2) != 1 or rot_dim % 2:
        raise refuse("rotary_embedding", "takes dense heads and an even rotary size")
    if cos_sin_cache.dtype != torch.float32 or not cos_sin_cache.is_contiguous():
        raise refuse("rotary_embedding", "cos_sin_cache must be dense float32")
    check_dense("rotary_embedding", positions, torch.int64, num_tokens)
    dtype = dtype_number("rotary_embedding", query, key)
    calls.get().rotary_embedding(
        *(num_tokens, dtype, positions, query, key, num_heads, num_kv_heads),
        *(query.stride(0), key.stride(0), query.stride(1), key.stride(1)),
        *(cos_sin_cache, num_positions, rot_dim, is_neox),
    )


def _kind(operation: str, name: str) -> int:
    if name not in KINDS:
        raise refuse(operation, f"{name!r} is unknown; known: {', '.join(KINDS)}")
    return KINDS[name]


def _activate(
    operation: str,
    x: Tensor,
    out: Tensor,
    is_gated: bool,
    kind: int,
    curve: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
) -> Tensor:
    num_rows, size = out.shape
    calls.get().activation(
        *(num_rows, dtype_number(operation, x, out), kind, is_gated, x, out, size),
        *(row_stride(operation, x), row_stride(operation, out), *curve),
    )
    return out
