"""State-space layers (Dao and Gu, arXiv:2405.21060), in plain torch.

States are float32, one a slot. Request r starts from the state in slot state_in[r] ([R] int32),
or from zeros if that is -1; after token t its state is written to slot state_out[t] ([T] int32)
unless that is -1. A request may write the slot it starts from, but no other request's of the
step. Tokens of no request become 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vllm_lite.kernels.reference.elementwise import ACTIVATIONS


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
    """Return act(sum over k of weight[k] * x[t - K + 1 + k] + bias) [T, C] of x [T, C].

    weight [K, C] and bias [C] are float32. states [S, K - 1, C] hold a request's last inputs, the
    latest last. Rounded once, to x's own type.
    """
    out = torch.zeros_like(x)
    size = len(weight)
    for tokens, slot in _requests(query_start_loc, state_in):
        before = states[slot] if slot >= 0 else states.new_zeros(states.shape[1:])
        inputs = torch.cat([before, x[tokens].float()])
        mixed = (inputs.unfold(0, size, 1) * weight.t()).sum(-1)
        mixed = mixed if bias is None else mixed + bias
        out[tokens] = ACTIVATIONS[act](mixed).to(x.dtype)
        for i, written in enumerate(state_out[tokens].tolist(), 1):
            if written >= 0:
                states[written] = inputs[i : i + size - 1]
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
    """Return y [T, H, P] of x [T, H, P] by a recurrence with a state [N, P] for each head.

    With s = softplus(dt + dt_bias), clamped to dt_limit: state = e^(s a) state + s b x^T and
    y = c state + d x. dt is [T, H]; b and c are [T, G, N], of groups of H / G heads; a, d and
    dt_bias are [H] float32, states [S, H, N, P]. Rounded once, to x's own type.
    """
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    heads = x.shape[1] // b.shape[1]
    steps = torch.nn.functional.softplus(dt.float() + dt_bias).clamp(*dt_limit)
    for tokens, slot in _requests(query_start_loc, state_in):
        state = states[slot].clone() if slot >= 0 else states.new_zeros(states.shape[1:])
        written = state_out[tokens].tolist()
        for t, target in zip(range(tokens.start, tokens.stop), written, strict=True):
            b_t, c_t = (row[t].float().repeat_interleave(heads, 0)[..., None] for row in (b, c))
            inputs = x[t].float()
            state *= (steps[t] * a).exp()[:, None, None]
            state += b_t * (steps[t][:, None] * inputs)[:, None]
            out[t] = ((state * c_t).sum(1) + d[:, None] * inputs).to(x.dtype)
            if target >= 0:
                states[target] = state
    return out


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, group_size: int, act: str = "silu"
) -> Tensor:
    """Return x * act(gate), scaled to unit root mean square in each group, times weight: [T, N].

    Groups are `group_size` elements of a row. Rounded to weight's type, which is x's, before the
    multiplication by weight.
    """
    wide = x.float() * ACTIVATIONS[act](gate.float())
    groups = wide.view(len(x), x.shape[1] // group_size, group_size)
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    return groups.view(x.shape).to(x.dtype) * weight


def _requests(query_start_loc: Tensor, state_in: Tensor) -> Iterator[tuple[slice, int]]:
    """Yield each request's tokens and initial slot."""
    bounds = query_start_loc.tolist()
    for r, slot in enumerate(state_in.tolist()):
        if bounds[r] < bounds[r + 1]:
            yield slice(bounds[r], bounds[r + 1]), slot
