"""Mixtures of experts by the compiled CPU kernels.

An expert's weight may be any that a linear layer takes: its address goes into a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import check_dense, dtype_number, refuse, row_stride
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.elementwise import KINDS
from vllm_lite.kernels.cpu.grouped import PackedGrouped
from vllm_lite.kernels.reference.experts import EXPERT_SCORES, SWIGLU, ExpertForm, Routing
from vllm_lite.kernels.reference.linear import PackedLinear
from vllm_lite.kernels.reference.quantized import QuantizedWeight

ExpertWeight = PackedLinear | QuantizedWeight | PackedGrouped


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights [M, N] of E experts, all plain, quantised or grouped."""

    weights: tuple[ExpertWeight, ...]
    biases: tuple[Tensor, ...]
    table: Tensor  # [E, 3] int64: ExpertWeight (csrc/cpu/experts.h)
    num_outputs: int  # M
    num_inputs: int  # N

    @property
    def storage(self) -> int:
        """ExpertStorage in csrc/cpu/experts.h."""
        return (PackedLinear, QuantizedWeight, PackedGrouped).index(type(self.weights[0]))


def pack_experts(
    weights: Sequence[ExpertWeight], biases: Sequence[Tensor] | None = None
) -> PackedExperts:
    first = weights[0]
    sizes = (first.num_outputs, first.num_inputs)
    entries = []
    for i, weight in enumerate(weights):
        if type(weight) is not type(first) or (weight.num_outputs, weight.num_inputs) != sizes:
            raise refuse("pack_experts", "experts must be of one form and size")
        bias = 0
        if biases is not None:
            check_dense("pack_experts", biases[i], torch.float32, first.num_outputs)
            bias = biases[i].data_ptr()
        if isinstance(weight, QuantizedWeight):
            entries.append((weight.table.data_ptr(), len(weight.parts), bias))
        elif isinstance(weight, PackedGrouped):
            if not isinstance(first, PackedGrouped) or weight.group_size != first.group_size:
                raise refuse("pack_experts", "experts must have groups of one size")
            entries.append((weight.fields.data_ptr(), 0, bias))
        else:
            entries.append((weight.data.data_ptr(), 0, bias))
    return PackedExperts(tuple(weights), tuple(biases or ()), torch.tensor(entries), *sizes)


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
