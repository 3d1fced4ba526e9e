"""A mixture of experts, in plain torch.

A router chooses K of E experts for each of T tokens: T * K pairs, where pair p is of
token p // K. Pairs are sorted by expert, so that an expert's pairs are the rows of one GEMM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight, expand_books
from vllm_lite.kernels.grouped_weight import expand
from vllm_lite.kernels.reference.elementwise import ACTIVATIONS
from vllm_lite.kernels.reference.linear import PackedLinear
from vllm_lite.kernels.reference.rounding import (
    ActivationRounding,
    join_roundings,
    round_activations,
)


@dataclass(frozen=True, slots=True)
class ExpertOrder:
    """Pairs sorted by expert, each expert's padded to whole tiles; sized for any choice."""

    pairs: Tensor  # [tiles * tile_size] int32; T * K is padding
    expert_of_tile: Tensor  # [tiles] int32; -1: an unused tile
    tile_size: int


# Names of Routing.scores, in the order of ExpertScores in csrc/cpu/kernel_table.h.
EXPERT_SCORES = ("softmax", "sigmoid", "sparsemixer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How top_k experts are chosen for a token by the router's logits, and with what weights."""

    top_k: int
    # Of the logits; sparsemixer's are the logits, and a choice's weight is its softmax share of
    # those left that are within `tolerance` of it (arXiv:2310.00811).
    scores: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    # Whether weights are divided by their sum plus `epsilon`.
    is_renormalized: bool = True
    epsilon: float = 0.0
    # Of the weights, in the end.
    scale: float = 1.0
    # Experts are in groups of equal size, and chosen from the best top_groups of them; a group is
    # as good as the sum of its best_of_group best experts (arXiv:2405.04434, arXiv:2412.19437).
    num_groups: int = 1
    top_groups: int = 1
    best_of_group: Literal[1, 2] = 1
    tolerance: float = 0.0


def route_topk(
    logits: Tensor, routing: Routing, bias: Tensor | None = None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose each token's experts by logits [T, E] as `routing` says; ties go to the first.

    They are chosen by scores plus the bias [E], and weighted by scores alone; in the end, weights
    have the factors [E] of their experts. Returns weights [T, K] float32 and ids [T, K] int32, the
    best first.
    """
    scores = _scores(logits.float(), routing)
    order = (scores if bias is None else scores + bias).clone()
    if routing.top_groups < routing.num_groups:
        groups = order.view(len(order), routing.num_groups, -1)
        best = groups.sort(dim=-1, descending=True).values[..., : routing.best_of_group].sum(-1)
        ranks = best.sort(dim=-1, descending=True, stable=True).indices
        groups.scatter_(1, _columns(ranks[:, routing.top_groups :], groups), -torch.inf)
    ids = order.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    if routing.scores == "sparsemixer":
        weights = _shares_of_near(scores, ids, routing.tolerance)
    else:
        weights = scores.gather(1, ids)
    if routing.is_renormalized:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.epsilon)
    weights = weights * routing.scale
    if factors is not None:
        weights = weights * factors[ids]
    return weights.contiguous(), ids.int().contiguous()


def _scores(logits: Tensor, routing: Routing) -> Tensor:
    if routing.scores == "softmax":
        return torch.softmax(logits, dim=-1)
    return torch.sigmoid(logits) if routing.scores == "sigmoid" else logits


def _columns(groups: Tensor, like: Tensor) -> Tensor:
    return groups.unsqueeze(-1).expand(-1, -1, like.shape[-1])


def _shares_of_near(logits: Tensor, ids: Tensor, tolerance: float) -> Tensor:
    left, shares = logits.clone(), []
    for chosen in ids.long().unbind(1):
        best = left.gather(1, chosen[:, None])
        distance = (best - left) / torch.maximum(left.abs(), best)
        near = left.masked_fill(distance > tolerance, -torch.inf)
        shares.append(torch.softmax(near, dim=-1).gather(1, chosen[:, None]))
        left = left.scatter(1, chosen[:, None], -torch.inf)
    return torch.cat(shares, 1)


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """A linear layer of E experts: weights [E, M, N] and maybe biases [E, M] float32."""

    weight: Tensor
    bias: Tensor | None = None
    rounding: ActivationRounding | None = None  # by `join_roundings`

    @property
    def num_experts(self) -> int:
        """E."""
        return self.weight.shape[0]

    @property
    def num_outputs(self) -> int:
        """M."""
        return self.weight.shape[1]

    @property
    def num_inputs(self) -> int:
        """N."""
        return self.weight.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertForm:
    """How an expert computes with its two layers."""

    act: str = "silu"
    # Gates are at most the limit, factors no further from 0, and the shift is added to them.
    limit: float = math.inf
    shift: float = 0.0
    # Whether a choice's weight scales the expert's input, instead of its output.
    scales_inputs: bool = False


SWIGLU = ExpertForm()
ExpertWeight = PackedLinear | PackedWeight


def pack_experts(
    weights: Sequence[ExpertWeight | tuple[ExpertWeight, ...]],
    biases: Sequence[Tensor] | None = None,
    roundings: Sequence[ActivationRounding | None] = (),
) -> ExpertStack:
    """Prepare weights [M, N] of E experts, from pack_linear or pack_grouped, for `experts_mlp`.

    One may be a tuple of parts, whose outputs follow each other. Biases are [M] float32. What an
    expert's grouped weight reads is rounded by its one of `roundings`.
    """
    bias = None if biases is None else torch.stack(list(biases))
    values = torch.stack([_values(weight) for weight in weights])
    return ExpertStack(values, bias, join_roundings(roundings))


def _values(weight: ExpertWeight | tuple[ExpertWeight, ...]) -> Tensor:
    if isinstance(weight, tuple):
        return torch.cat([_values(part) for part in weight])
    if isinstance(weight, PackedLinear):
        return weight.data
    if isinstance(weight, CodebookWeight):
        return expand_books(weight)
    values = expand(weight)
    return torch.nn.functional.pad(values, (0, weight.row_size - values.shape[1]))


def order_by_expert(ids: Tensor, num_experts: int, tile_size: int) -> ExpertOrder:
    """Sort pairs by their experts' ids [T, K] int32, stably."""
    flat = ids.flatten()
    tiles = max_tiles(len(flat), num_experts, tile_size)
    pairs = torch.full((tiles * tile_size,), len(flat), dtype=torch.int32)
    expert_of_tile = torch.full((tiles,), -1, dtype=torch.int32)
    tile = 0
    for expert in range(num_experts):
        own = (flat == expert).nonzero()[:, 0].int()
        pairs[tile * tile_size : tile * tile_size + len(own)] = own
        count = -(-len(own) // tile_size)
        expert_of_tile[tile : tile + count] = expert
        tile += count
    return ExpertOrder(pairs, expert_of_tile, tile_size)


def max_tiles(num_pairs: int, num_experts: int, tile_size: int) -> int:
    """The most tiles that num_pairs pairs can need."""
    begun = min(num_pairs, num_experts)
    return begun + (num_pairs - begun) // tile_size


def experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    form: ExpertForm = SWIGLU,
    first_expert: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The weighted sum [T, N] of the experts ids [T, K] applied to x [T, N]; weights are [T, K].

    Expert first_expert + e applies gate_up[e], act(gate) * factor, then down[e]; gate_up
    [E, 2I, N] and down [E, N, I] come from pack_experts. Where gate_up has I outputs, there are no
    gates: the activation is all that lies between. Ids of other experts add nothing. What an expert
    reads and its hidden row are rounded to x's type, and then by their stack's rounding; the sum
    runs in float32, in the order of a token's choices, and is rounded to out_dtype (default: x's
    type).
    """
    total = torch.zeros(x.shape, dtype=torch.float32)
    local = ids - first_expert
    for choice in range(ids.shape[1]):
        for token, expert in enumerate(local[:, choice].tolist()):
            if not 0 <= expert < len(gate_up.weight):
                continue
            row, weight = x[token], weights[token, choice]
            if form.scales_inputs:
                row, weight = (row * weight).to(x.dtype), torch.ones(())
            made = _product(gate_up, expert, row).to(x.dtype)
            if len(made) == down.weight.shape[2]:
                hidden = ACTIVATIONS[form.act](made.float()).to(x.dtype)
            else:
                hidden = gated_rows(made[None], form)[0]
            total[token] += _product(down, expert, hidden) * weight
    return total.to(out_dtype or x.dtype)


def gated_rows(x: Tensor, form: ExpertForm) -> Tensor:
    """act(gate) * factor [T, I] of x [T, 2I], whose halves are gates and factors."""
    gate, factor = x.chunk(2, dim=-1)
    factor = factor.clamp(-form.limit, form.limit) + form.shift
    return ACTIVATIONS[form.act](gate.clamp(max=form.limit).float()).to(x.dtype) * factor


def _product(stack: ExpertStack, expert: int, row: Tensor) -> Tensor:
    if stack.rounding is not None:
        rounding = stack.rounding.of_experts(torch.tensor([expert]))
        row = round_activations(row[None], rounding)[0]
    made = stack.weight[expert].float() @ row.float()
    return made if stack.bias is None else made + stack.bias[expert]
