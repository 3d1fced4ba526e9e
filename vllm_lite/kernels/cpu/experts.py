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
from vllm_lite.kernels.reference.linear import PackedLinear
from vllm_lite.kernels.reference.quantized import QuantizedWeight


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights [M, N] of E experts, all plain or all quantised."""

    weights: tuple[PackedLinear | QuantizedWeight, ...]
    table: Tensor  # [E, 2] int64: ExpertWeight (csrc/cpu/experts.h)
    num_outputs: int  # M
    num_inputs: int  # N

    @property
    def is_quantized(self) -> bool:
        return isinstance(self.weights[0], QuantizedWeight)


def pack_experts(weights: Sequence[PackedLinear | QuantizedWeight]) -> PackedExperts:
    first = weights[0]
    sizes = (first.num_outputs, first.num_inputs)
    entries = []
    for weight in weights:
        if type(weight) is not type(first) or (weight.num_outputs, weight.num_inputs) != sizes:
            raise refuse("pack_experts", "experts must be of one form and size")
        if isinstance(weight, QuantizedWeight):
            entries.append((weight.table.data_ptr(), len(weight.parts)))
        else:
            entries.append((weight.data.data_ptr(), 0))
    return PackedExperts(tuple(weights), torch.tensor(entries), *sizes)


def route_topk(logits: Tensor, top_k: int, is_renormalized: bool = True) -> tuple[Tensor, Tensor]:
    num_tokens, num_experts = logits.shape
    if logits.dtype != torch.float32 or not 0 < top_k <= num_experts <= _cpu.MAX_EXPERTS:
        raise refuse("route_topk", f"takes float32 logits of up to {_cpu.MAX_EXPERTS} experts")
    weights = torch.empty(num_tokens, top_k, dtype=torch.float32)
    ids = torch.empty(num_tokens, top_k, dtype=torch.int32)
    calls.get().route_topk(
        logits.data_ptr(),
        weights.data_ptr(),
        ids.data_ptr(),
        num_tokens,
        num_experts,
        top_k,
        row_stride("route_topk", logits),
        is_renormalized,
    )
    return weights, ids


def experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    act: str = "silu",
    first_expert: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    num_tokens, top_k = ids.shape
    size, inner = gate_up.num_inputs, down.num_inputs
    _check(x, ids, weights, gate_up, down)
    if act not in KINDS:
        raise refuse("experts_mlp", f"{act!r} is unknown; known: {', '.join(KINDS)}")
    # One row a token, as recorded steps count memory.
    places = torch.empty(num_tokens, top_k, dtype=torch.int32)
    rows = torch.empty(num_tokens, top_k * size, dtype=torch.float32)
    hidden = torch.empty(num_tokens, top_k * 2 * inner, dtype=x.dtype)
    out = torch.empty(num_tokens, size, dtype=out_dtype or x.dtype)
    calls.get().experts_mlp(
        x.data_ptr(),
        ids.data_ptr(),
        weights.data_ptr(),
        gate_up.table.data_ptr(),
        down.table.data_ptr(),
        places.data_ptr(),
        rows.data_ptr(),
        hidden.data_ptr(),
        out.data_ptr(),
        dtype_number("experts_mlp", x),
        dtype_number("experts_mlp", out),
        KINDS[act],
        gate_up.is_quantized,
        num_tokens,
        top_k,
        first_expert,
        len(gate_up.weights),
        size,
        inner,
        row_stride("experts_mlp", x),
    )
    return out


def _check(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: PackedExperts, down: PackedExperts
) -> None:
    check_dense("experts_mlp", ids, torch.int32, len(x), ids.shape[1])
    check_dense("experts_mlp", weights, torch.float32, *ids.shape)
    fits = (
        x.shape[1] == gate_up.num_inputs == down.num_outputs
        and gate_up.num_outputs == 2 * down.num_inputs
        and len(gate_up.weights) == len(down.weights)
        and gate_up.is_quantized == down.is_quantized
    )
    if not fits:
        raise refuse("experts_mlp", "x and the experts' weights do not fit together")
    for packed in (gate_up, down):
        plain = packed.weights[0]
        if isinstance(plain, PackedLinear) and plain.dtype != x.dtype:
            raise refuse("experts_mlp", f"x {x.dtype} does not fit the weights")
