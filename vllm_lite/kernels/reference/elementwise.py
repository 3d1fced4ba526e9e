"""Activations, scaled sums and rotary embeddings, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


# Functions of float32, in the order of ActivationKind in csrc/cpu/kernel_table.h.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,  # arXiv:1606.08415, by the error function
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": _gelu_quick,
    "relu": F.relu,
    "relu2": _relu2,  # arXiv:2109.08668
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def activation(x: Tensor, name: str, out: Tensor | None = None) -> Tensor:
    """Return the activation `name` (see ACTIVATIONS) of x [T, N]. `out` may be x itself."""
    activated = ACTIVATIONS[name](x.float())
    return activated.to(x.dtype) if out is None else out.copy_(activated)


def xielu(
    x: Tensor,
    alpha_p: float,
    alpha_n: float,
    beta: float,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """Return xIELU of x [T, N] (arXiv:2411.13010): the integral of an ELU. `out` may be x itself.

    eps is at most 0, and bounds the argument of the exponential.
    """
    wide = x if x.dtype is torch.float64 else x.float()
    below = alpha_n * (torch.expm1(wide.clamp(max=eps)) - wide)
    activated = torch.where(wide > 0, alpha_p * wide * wide, below) + beta * wide
    return activated.to(x.dtype) if out is None else out.copy_(activated)


def act_and_mul(x: Tensor, name: str) -> Tensor:
    """Return activation(gate, name) * up [T, I] of x [T, 2I], whose halves are gate and up."""
    gate, up = x.chunk(2, dim=-1)
    return activation(gate, name) * up


def gated_product(x: Tensor, gate: Tensor, act: str) -> Tensor:
    """Return x * act(gate) [T, N] of two tensors [T, N], in float32 and rounded once."""
    return (x.float() * ACTIVATIONS[act](gate.float())).to(x.dtype)


def scaled_add(
    x: Tensor,
    y: Tensor | None = None,
    x_scale: float = 1.0,
    y_scale: float = 1.0,
    out: Tensor | None = None,
    limit: float = inf,
    gates: Tensor | None = None,
) -> Tensor:
    """Return x * x_scale + y * y_scale, or x * x_scale alone, [T, N], in float32 and rounded once.

    Gates [T, 1] float32 scale rows of y too, by their logistic function. What is beyond +-limit
    becomes that. `out` may be x or y.
    """
    wide = x.float() * x_scale
    if y is not None:
        gated = 1.0 if gates is None else gates.sigmoid()
        wide = wide + y.float() * (gated * y_scale)
    wide = wide.clamp(-limit, limit)
    return wide.to(x.dtype) if out is None else out.copy_(wide)


def mix_rows(
    x: Tensor,
    factors: Tensor | None = None,
    base: Tensor | None = None,
    offset: float = 0.0,
    weight: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sum a token's rows of x [T, I, N] by factors [T, J, I] plus `offset`: [T, J, N].

    The sums are added to base [T, J, N], then columns are multiplied by weight [N]. Without factors
    they are 0, and J is that of the base, or 1. `out` may be the base. Float32, rounded once.
    """
    if factors is None:
        factors = x.new_zeros(len(x), 1 if base is None else base.shape[1], x.shape[1])
    mixed = (factors.float() + offset) @ x.float()
    mixed = mixed if base is None else mixed + base.float()
    mixed = (mixed if weight is None else mixed * weight.float()).to(x.dtype)
    return mixed if out is None else out.copy_(mixed)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    """Rotate query [T, H, D] and key [T, K, D] in place by their positions [T] (arXiv:2104.09864).

    cos_sin_cache [P, rot_dim] float32 holds rot_dim/2 cosines, then as many sines; only the first
    rot_dim of D are rotated. Pairs are (i, i + rot_dim/2), or (2i, 2i + 1) if not is_neox.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    rot_dim = cos_sin_cache.shape[-1]
    for heads in (query, key):
        rotated = heads[..., :rot_dim].float()
        if is_neox:
            first, second = rotated.chunk(2, dim=-1)
        else:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        pair = (first * cos - second * sin, second * cos + first * sin)
        result = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
        heads[..., :rot_dim] = result.to(heads.dtype)
