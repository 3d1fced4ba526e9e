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
    act: str | None = "silu",
    *,
    before: Tensor | None = None,
    after: Tensor | None = None,
) -> Tensor:
    """Return act(sum over k of weight[k] * x[t - K + 1 + k] + bias) [T, C] of x [T, C].

    weight [K, C] and bias [C] are float32. states [S, K - 1, C] hold a request's last inputs, the
    latest last. Where `before` and `after` [T, C] are given, and no act, they multiply the inputs
    and what is returned. Rounded once, to x's own type.
    """
    out = torch.zeros_like(x)
    size = len(weight)
    for tokens, slot in _requests(query_start_loc, state_in):
        past = states[slot] if slot >= 0 else states.new_zeros(states.shape[1:])
        given = x[tokens].float()
        inputs = torch.cat([past, given if before is None else given * before[tokens].float()])
        mixed = (inputs.unfold(0, size, 1) * weight.t()).sum(-1)
        mixed = mixed if bias is None else mixed + bias
        mixed = mixed if act is None else ACTIVATIONS[act](mixed)
        mixed = mixed if after is None else mixed * after[tokens].float()
        out[tokens] = mixed.to(x.dtype)
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
    """Return y [T, C] of x [T, C] by a recurrence with a state [N] for each channel.

    With s = softplus(dt): state = e^(s a) state + s b x and y = (c state + d x) silu(gate)
    (Gu and Dao, arXiv:2312.00752). dt and gate are [T, C], b and c [T, N]; a [N, C], d [C] and
    states [S, N, C] are float32. Rounded once, to x's own type.
    """
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    steps = torch.nn.functional.softplus(dt.float())
    for tokens, slot in _requests(query_start_loc, state_in):
        state = states[slot].clone() if slot >= 0 else states.new_zeros(states.shape[1:])
        written = state_out[tokens].tolist()
        for t, target in zip(range(tokens.start, tokens.stop), written, strict=True):
            inputs = x[t].float()
            state *= (steps[t] * a).exp()
            state += b[t].float()[:, None] * (steps[t] * inputs)
            y = (state * c[t].float()[:, None]).sum(0) + d * inputs
            out[t] = (y * ACTIVATIONS["silu"](gate[t].float())).to(x.dtype)
            if target >= 0:
                states[target] = state
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
    """Return y [T, H, V] by the gated delta rule (Yang et al., arXiv:2412.06464).

    A state [K, V] of each head maps keys to values: it decays by e^(a softplus(decay + dt_bias)),
    then what it has of the key k moves towards v by the share beta_scale * sigmoid(beta), and
    y = q state / sqrt(K). q and k [T, G, K], of groups of H / G heads, are first scaled to length
    1; v is [T, H, V], beta [T, H], a [H]. decay is [T, H] with dt_bias [H], or [T, H, K] with
    [H, K]: one for each row of the state (arXiv:2510.26692). a, dt_bias and states [S, H, K, V]
    are float32. Rounded once, to v's own type.
    """
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    heads, size = v.shape[1] // k.shape[1], k.shape[2]
    q, k = (_unit_length(rows.float()).repeat_interleave(heads, 1) for rows in (q, k))
    wide = decay if decay.dim() == 3 else decay[..., None]
    kept = torch.nn.functional.softplus(wide.float() + dt_bias.view(wide.shape[1:]))
    kept = (a[:, None] * kept).exp()[..., None]
    share = beta_scale * beta.float().sigmoid()[..., None]
    for tokens, slot in _requests(query_start_loc, state_in):
        state = states[slot].clone() if slot >= 0 else states.new_zeros(states.shape[1:])
        written = state_out[tokens].tolist()
        for t, target in zip(range(tokens.start, tokens.stop), written, strict=True):
            state *= kept[t]
            known = (state * k[t][..., None]).sum(1)
            state += k[t][..., None] * ((v[t].float() - known) * share[t])[:, None]
            out[t] = ((state * q[t][..., None]).sum(1) * size**-0.5).to(v.dtype)
            if target >= 0:
                states[target] = state
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
    """Return the states of x [T, C] by a recurrence with one number for each channel.

    With a = e^(rate sigmoid(decay + decay_bias)): state = a state + sqrt(1 - a^2) s x, where
    s = sigmoid(gate + gate_bias) (RG-LRU, arXiv:2402.19427). A request that starts from zeros
    has s x after its first token. gate and decay are [T, C]; rate, which is negative, and biases
    [C] and states [S, C] are float32. Rounded once, to x's own type.
    """
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    exponents = rate * (decay.float() + decay_bias).sigmoid()
    given = (gate.float() + gate_bias).sigmoid() * x.float()
    kept, taken = exponents.exp(), (-(2 * exponents).expm1()).sqrt()
    for tokens, slot in _requests(query_start_loc, state_in):
        state = states[slot] if slot >= 0 else None
        written = state_out[tokens].tolist()
        for t, target in zip(range(tokens.start, tokens.stop), written, strict=True):
            state = given[t] if state is None else kept[t] * state + taken[t] * given[t]
            out[t] = state.to(x.dtype)
            if target >= 0:
                states[target] = state
    return out


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    group_size: int,
    act: str = "silu",
    norm_first: bool = False,
) -> Tensor:
    """Return x * act(gate), scaled to unit root mean square in each group, times weight: [T, N].

    Groups are `group_size` elements of a row. Rounded to weight's type, which is x's, before the
    multiplication by weight. With norm_first the gate is the last factor.
    """
    factor = ACTIVATIONS[act](gate.float())
    wide = x.float() if norm_first else x.float() * factor
    groups = wide.view(len(x), x.shape[1] // group_size, group_size)
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    normed = groups.view(x.shape).to(x.dtype) * weight
    return (normed.float() * factor).to(x.dtype) if norm_first else normed


def _unit_length(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + 1e-6)


def _requests(query_start_loc: Tensor, state_in: Tensor) -> Iterator[tuple[slice, int]]:
    """Yield each request's tokens and initial slot."""
    bounds = query_start_loc.tolist()
    for r, slot in enumerate(state_in.tolist()):
        if bounds[r] < bounds[r + 1]:
            yield slice(bounds[r], bounds[r + 1]), slot
