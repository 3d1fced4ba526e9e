"""A mixture of experts by Triton's interpreter equals the reference."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.reference import experts as reference_experts
from vllm_lite.kernels.reference.experts import ExpertForm, ExpertStack, Routing

# tokens, experts, experts of a token: one token, all experts, an odd number, only one choice
CASES = [(1, 8, 2), (7, 5, 5), (20, 12, 3), (33, 3, 1)]


@pytest.mark.parametrize(
    ("tokens", "experts", "routing"),
    [
        (1, 8, Routing(top_k=2)),
        (7, 5, Routing(top_k=5, is_renormalized=False, scale=2.5)),
        (20, 12, Routing(top_k=3, scores="sigmoid", epsilon=1e-3)),
        (9, 15, Routing(top_k=3, num_groups=5, top_groups=2)),
        (9, 15, Routing(top_k=4, scores="sigmoid", num_groups=3, top_groups=2, best_of_group=2)),
        (
            33,
            6,
            Routing(top_k=2, scores="sparsemixer", tolerance=0.4, is_renormalized=False),
        ),
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_routing(tokens: int, experts: int, routing: Routing, has_bias: bool) -> None:
    logits = torch.randn(tokens, experts).round(decimals=1)  # some are equal
    bias = torch.randn(experts) if has_bias and routing.scores != "sparsemixer" else None
    factors = torch.rand(experts) if has_bias else None
    ours = ops.route_topk(logits, routing, bias, factors)
    theirs = reference_experts.route_topk(logits, routing, bias, factors)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("tile_size", [16, 64])
@pytest.mark.parametrize(("tokens", "experts", "choices"), CASES)
def test_pairs_are_sorted_by_expert(
    tokens: int, experts: int, choices: int, tile_size: int
) -> None:
    ids = torch.randint(experts, (tokens, choices), dtype=torch.int32)
    ours = ops.order_by_expert(ids, experts, tile_size)
    theirs = reference_experts.order_by_expert(ids, experts, tile_size)
    assert torch.equal(ours.pairs, theirs.pairs)
    assert torch.equal(ours.expert_of_tile, theirs.expert_of_tile)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_experts_mlp(dtype: torch.dtype) -> None:
    for tokens, experts, choices in CASES[:3]:
        x = torch.randn(tokens, 48).to(dtype)
        gate_up = (torch.randn(experts, 72, 48) / 7).to(dtype)
        down = (torch.randn(experts, 48, 36) / 6).to(dtype)
        weights, ids = reference_experts.route_topk(
            torch.randn(tokens, experts), Routing(top_k=choices)
        )
        down_bias = torch.randn(experts, 48)
        forms = [
            ExpertForm(),
            ExpertForm(scales_inputs=True),
            ExpertForm(act="gelu_quick", limit=0.5, shift=1.0),
        ]
        for form in forms:
            for first in (gate_up, gate_up[:, :36].contiguous()):
                layers = (
                    ExpertStack(first, torch.randn(first.shape[:2])),
                    ExpertStack(down, down_bias),
                )
                ours, theirs = (
                    module.experts_mlp(x, ids, weights, *layers, form)
                    for module in (ops, reference_experts)
                )
                tolerance = 1e-4 if dtype is torch.float32 else 6e-3
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_any_routing_fits_the_tiles() -> None:
    for pairs, experts, tile_size in ((1, 8, 16), (64, 3, 16), (65, 64, 16), (300, 7, 64)):
        room = reference_experts.max_tiles(pairs, experts, tile_size)
        for ids in (torch.zeros(pairs), torch.arange(pairs) % experts, torch.arange(pairs) // 17):
            counts = ids.long().clamp(max=experts - 1).bincount(minlength=experts)
            assert int((-(-counts // tile_size)).sum()) <= room
