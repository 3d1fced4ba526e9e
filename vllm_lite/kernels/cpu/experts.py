"""Mixtures of experts by the compiled CPU kernels.

An expert's weight may be any that a linear layer takes: its address goes into a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import (
    check_dense,
    check_floats,
    dtype_number,
    refuse,
    row_stride,
)
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.elementwise import KINDS
from vllm_lite.kernels.cpu.grouped import PackedGrouped, rounding_fields
from vllm_lite.kernels.reference.experts import EXPERT_SCORES, SWIGLU, ExpertForm, Routing
from vllm_lite.kernels.reference.linear import PackedLinear
from vllm_lite.kernels.reference.quantized import QuantizedWeight
from vllm_lite.kernels.reference.rounding import ActivationRounding, join_roundings

ExpertWeight = PackedLinear | QuantizedWeight | tuple[PackedGrouped, ...]


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights [M, N] of E experts, all plain, quantised or grouped, perhaps in parts."""

    weights: tuple[ExpertWeight, ...]
    biases: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]  # what the table refers to besides
    table: Tensor  # [E, 3] int64: ExpertWeight (csrc/cpu/experts.h)
    num_outputs: int  # M
    num_inputs: int  # N
    rounding: ActivationRounding | None  # by `join_roundings`, of grouped weights alone

    @property
    def storage(self) -> int:
        """ExpertStorage in csrc/cpu/experts.h."""
        return (PackedLinear, QuantizedWeight, tuple).index(type(self.weights[0]))


def pack_experts(
    weights: Sequence[ExpertWeight | PackedGrouped],
    biases: Sequence[Tensor] | None = None,
    roundings: Sequence[ActivationRounding | None] = (),
) -> PackedExperts:
    held = [(weight,) if isinstance(weight, PackedGrouped) else weight for weight in weights]
    sizes = _sizes(held[0])
    entries, fields = [], []
    for i, weight in enumerate(held):
        if type(weight) is not type(held[0]) or _sizes(weight) != sizes:
            raise refuse("pack_experts", "experts must be of one form and size")
        bias = 0
        if biases is not None:
            check_dense("pack_experts", biases[i], torch.float32, sizes[0])
            bias = biases[i].data_ptr()
        if isinstance(weight, QuantizedWeight):
            entries.append((weight.table.data_ptr(), len(weight.parts), bias))
        elif isinstance(weight, tuple):
            fields.append(torch.cat([part.fields for part in weight]))
            entries.append((fields[-1].data_ptr(), len(weight), bias))
        else:
            entries.append((weight.data.data_ptr(), 0, bias))
    rounding = join_roundings(roundings)
    if rounding is not None:
        if not fields:
            raise refuse("pack_experts", "rounds only what grouped weights read")
        check_floats("pack_experts", "scale", rounding.scale, len(held), 1)
        check_floats("pack_experts", "zero", rounding.zero, len(held), 1)
    return PackedExperts(
        tuple(held),
        tuple(biases or ()),
        tuple(fields),
        torch.tensor(entries),
        sizes[0],
        sizes[1],
        rounding,
    )


def _sizes(weight: ExpertWeight) -> tuple[int, ...]:
    """Outputs, inputs and, of grouped weights, inputs that share a scale."""
    if not isinstance(weight, tuple):
        return weight.num_outputs, weight.num_inputs
    groups = {part.group_size for part in weight}
    num_inputs = {part.num_inputs for part in weight}
    if len(groups) > 1 or len(num_inputs) > 1:
        raise refuse("pack_experts", "experts must have groups of one size")
    return sum(part.num_outputs for part in weight), *num_inputs, *groups


def route_topk(
    logits: Tensor, routing: Routing, bias: Tensor | None = None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_tokens, num_experts = logits.shape
    top_k, groups = routing.top_k, routing.num_groups
    if logits.dtype != torch.float32 or not 0 < top_k <= num_experts <= _cpu.MAX_EXPERTS:
        raise refuse("route_topk", f"takes float32 logits of up to {_cpu.MAX_EXPERTS} experts")
    if num_experts % groups or not 0 < routing.top_groups <= groups:
        raise refuse("route_topk", "takes groups of one size, and no more than there are")
    for numbers in (bias, factors):
        if numbers is not None:
            check_dense("route_topk", numbers, torch.float32, num_experts)
    weights = torch.empty(num_tokens, top_k, dtype=torch.float32)
    ids = torch.empty(num_tokens, top_k, dtype=torch.int32)
    calls.get().route_topk(
        *(num_tokens, logits, bias, factors, row_stride("route_topk", logits), num_experts),
        *(top_k, groups, routing.top_groups, routing.best_of_group),
        *(EXPERT_SCORES.index(routing.scores), routing.is_renormalized),
        *(routing.epsilon, routing.scale, routing.tolerance, weights, ids),
    )
    return weights, ids


def experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    form: ExpertForm = SWIGLU,
    first_expert: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    num_tokens, top_k = ids.shape
    size, inner = gate_up.num_inputs, down.num_inputs
    _check(x, ids, weights, gate_up, down)
    if form.act not in KINDS:
        raise refuse("experts_mlp", f"{form.act!r} is unknown; known: {', '.join(KINDS)}")
    # One row a token, as recorded steps count memory.
    places = torch.empty(num_tokens, top_k, dtype=torch.int32)
    rows = torch.empty(num_tokens, top_k * size, dtype=torch.float32)
    hidden = torch.empty(num_tokens, top_k * gate_up.num_outputs, dtype=x.dtype)
    out = torch.empty(num_tokens, size, dtype=out_dtype or x.dtype)
    dtype, result = dtype_number("experts_mlp", x), dtype_number("experts_mlp", out)
    has_gates = gate_up.num_outputs == 2 * inner
    calls.get().experts_mlp(
        *(num_tokens, dtype, result, KINDS[form.act], form.limit, form.shift),
        *(gate_up.storage, has_gates, form.scales_inputs),
        *(x, row_stride("experts_mlp", x), ids, weights, gate_up.table, down.table),
        *rounding_fields(gate_up.rounding, size),
        *rounding_fields(down.rounding, inner),
        *(places, rows, hidden, out),
        *(top_k, first_expert, len(gate_up.weights), size, inner),
    )
    return out


def _check(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: PackedExperts, down: PackedExperts
) -> None:
    check_dense("experts_mlp", ids, torch.int32, len(x), ids.shape[1])
    check_dense("experts_mlp", weights, torch.float32, *ids.shape)
    fits = (
        x.shape[1] == gate_up.num_inputs == down.num_outputs
        and gate_up.num_outputs in (2 * down.num_inputs, down.num_inputs)
        and len(gate_up.weights) == len(down.weights)
        and gate_up.storage == down.storage
    )
    if not fits:
        raise refuse("experts_mlp", "x and the experts' weights do not fit together")
    for packed in (gate_up, down):
        plain = packed.weights[0]
        if isinstance(plain, PackedLinear) and plain.dtype != x.dtype:
            raise refuse("experts_mlp", f"x {x.dtype} does not fit the weights")
