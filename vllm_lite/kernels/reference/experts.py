"""A mixture of experts, in plain torch; part of `reference`.

A router chooses K of E experts for each of T tokens; what it chose are T * K pairs, pair p of
token p // K. Pairs are sorted by expert, so that an expert's are the rows of one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.reference.activation import ACTIVATIONS

__all__ = ["experts_mlp", "order_by_expert", "route_topk"]


@dataclass(frozen=True, slots=True)
class ExpertOrder:
    """Pairs by expert, each expert's filled up to whole tiles; room for any choice of experts."""

    pairs: Tensor  # [tiles * tile_size] int32; the number of pairs stands for no pair
    expert_of_tile: Tensor  # [tiles] int32; -1: an unused tile
    tile_size: int


def route_topk(logits: Tensor, top_k: int, is_renormalized: bool = True) -> tuple[Tensor, Tensor]:
    """The top_k likeliest experts by logits [T, E], of equal ones the first.

    Returns their shares of the softmax [T, K] float32, which sum to 1 if renormalized, and their
    ids [T, K] int32; both from the likeliest on.
    """
    shares = torch.softmax(logits.float(), dim=-1)
    ordered = shares.sort(dim=-1, descending=True, stable=True)
    weights, ids = ordered.values[:, :top_k], ordered.indices[:, :top_k]
    if is_renormalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), ids.int().contiguous()


def order_by_expert(ids: Tensor, num_experts: int, tile_size: int) -> ExpertOrder:
    """The order of pairs whose experts are ids [T, K] int32; an expert's pairs keep their order."""
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
    """Tiles that hold num_pairs pairs, whatever their experts are."""
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
    """The sum of what x [T, N] becomes in its experts ids [T, K], times weights [T, K]: [T, N].

    Expert first_expert + e is down[e] of act(gate) * up of gate_up[e]; gate_up [E, 2I, N], down
    [E, N, I], as pack_experts leaves them. Ids of other experts add nothing. The hidden row is
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
