"""A mixture of experts, in plain torch.

A router chooses K of E experts for each of T tokens: T * K pairs, where pair p is of
token p // K. Pairs are sorted by expert, so that an expert's pairs are the rows of one GEMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.reference.elementwise import ACTIVATIONS
from vllm_lite.kernels.reference.linear import PackedLinear


@dataclass(frozen=True, slots=True)
class ExpertOrder:
    """Pairs sorted by expert, each expert's padded to whole tiles; sized for any choice."""

    pairs: Tensor  # [tiles * tile_size] int32; T * K is padding
    expert_of_tile: Tensor  # [tiles] int32; -1: an unused tile
    tile_size: int


def route_topk(logits: Tensor, top_k: int, is_renormalized: bool = True) -> tuple[Tensor, Tensor]:
    """Choose the top_k likeliest experts by logits [T, E]; ties go to the first.

    Returns their probabilities [T, K] float32, which sum to 1 if renormalized, and their
    ids [T, K] int32, both in descending order.
    """
    shares = torch.softmax(logits.float(), dim=-1)
    ordered = shares.sort(dim=-1, descending=True, stable=True)
    weights, ids = ordered.values[:, :top_k], ordered.indices[:, :top_k]
    if is_renormalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), ids.int().contiguous()


def pack_experts(weights: Sequence[PackedLinear]) -> Tensor:
    """Prepare weights [M, N] of E experts, which pack_linear made, for `experts_mlp`."""
    return torch.stack([weight.data for weight in weights])


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
    gate_up: Tensor,
    down: Tensor,
    act: str = "silu",
    first_expert: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The weighted sum [T, N] of the experts ids [T, K] applied to x [T, N]; weights are [T, K].

    Expert first_expert + e applies gate_up[e], act(gate) * up, then down[e]; gate_up [E, 2I, N] and
    down [E, N, I] come from pack_experts. Ids of other experts add nothing. The hidden row is
    rounded to x's type; the sum runs in float32, in the order of a token's choices, and is rounded
    to out_dtype (default: x's type).
    """
    total = torch.zeros(x.shape, dtype=torch.float32)
    local = ids - first_expert
    for choice in range(ids.shape[1]):
        for token, expert in enumerate(local[:, choice].tolist()):
            if not 0 <= expert < len(gate_up):
                continue
            gate, up = (gate_up[expert].float() @ x[token].float()).to(x.dtype).chunk(2)
            hidden = ACTIVATIONS[act](gate.float()).to(x.dtype) * up
            total[token] += (down[expert].float() @ hidden.float()) * weights[token, choice]
    return total.to(out_dtype or x.dtype)
