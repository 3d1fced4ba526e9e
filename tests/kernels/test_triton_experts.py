"""A mixture of experts by Triton's interpreter equals the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.test_codebooks import random_weight
from tests.kernels.test_experts import roundings
from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
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


def integers(outputs: int, inputs: int, is_ordered: bool = True) -> GroupedWeight:
    """Four bits in groups of 32 with zero points less by one."""
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    scales = (torch.rand(outputs, inputs // 32) / 16).half()
    zeros = torch.randint(16, scales.shape, dtype=torch.uint8)
    order = None if is_ordered else torch.randperm(inputs)
    return make_grouped(codes, scales, 4, 1, zeros=zeros, permutation=order)


def around_the_middle(outputs: int, inputs: int) -> GroupedWeight:
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    return make_grouped(codes, torch.rand(outputs, inputs // 32) / 16, 4, offset=8)


def small_floats(outputs: int, inputs: int) -> GroupedWeight:
    """Four bits that choose of a table, with scales of two levels."""
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // 16).to(torch.float8_e4m3fn)
    table = torch.linspace(-6, 6, 16) / 16
    supers = torch.rand(outputs, 1)
    return ops.pack_grouped(make_grouped(codes, scales, 4, super_scales=supers, table=table))


def books(outputs: int, inputs: int) -> CodebookWeight:
    return random_weight(2, outputs, inputs)


Make = Callable[[int, int], PackedWeight]


@pytest.mark.parametrize(
    "makes",
    [
        (integers,),
        (partial(integers, is_ordered=False), integers),
        (around_the_middle, integers),
        (small_floats,),
        (books,),
    ],
    ids=["integers", "one in another order", "zero points or none", "floats", "books"],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_of_packed_weights(makes: tuple[Make, ...], has_bias: bool) -> None:
    for tokens, experts, choices in CASES[:3]:
        x = torch.randn(tokens, 96)
        weights, ids = reference_experts.route_topk(
            torch.randn(tokens, experts), Routing(top_k=choices)
        )
        layers = []
        for outputs, inputs in ((64, 96), (96, 32)):
            made = [makes[i % len(makes)] for i in range(experts)]
            half = outputs // 2
            parts = [(make(half, inputs), make(outputs - half, inputs)) for make in made]
            if makes[0] is not books:
                parts = [(make(outputs, inputs),) for make in made]  # type: ignore[misc]
            layers.append((parts, list(torch.randn(experts, outputs)) if has_bias else None))
        ours = [ops.pack_experts(*layer) for layer in layers]
        theirs = [reference_experts.pack_experts(*layer) for layer in layers]
        got = ops.experts_mlp(x, ids, weights, *ours)
        want = reference_experts.experts_mlp(x, ids, weights, *theirs)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))


@pytest.mark.parametrize("name", ["int8", "int8 shifted static", "fp8 groups of 48", "nvfp4"])
def test_rounded_experts(name: str) -> None:
    for (tokens, experts, choices), form, first in (
        ((3, 4, 2), ExpertForm(act="gelu"), 1),
        ((2, 3, 2), ExpertForm(scales_inputs=True), 0),
    ):
        x = torch.randn(tokens, 96)
        weights, ids = reference_experts.route_topk(
            torch.randn(tokens, experts), Routing(top_k=choices)
        )
        held = experts - first
        layers = [
            ([integers(*sizes, is_ordered=False) for _ in range(held)], None, roundings(name, held))
            for sizes in ((64, 96), (96, 32))
        ]
        got, want = (
            each.experts_mlp(
                x, ids, weights, *(each.pack_experts(*by) for by in layers), form, first
            )
            for each in (ops, reference_experts)
        )
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))


def test_experts_unlike_each_other_are_refused() -> None:
    one = around_the_middle(32, 64)
    other = make_grouped(torch.zeros(32, 64, dtype=torch.uint8), torch.ones(32, 1), 4, offset=8)
    for unlike in (other, integers(64, 64), random_weight(2, 32, 64)):
        with pytest.raises(ValueError, match="experts must"):
            ops.pack_experts([one, unlike])


def test_any_routing_fits_the_tiles() -> None:
    for pairs, experts, tile_size in ((1, 8, 16), (64, 3, 16), (65, 64, 16), (300, 7, 64)):
        room = reference_experts.max_tiles(pairs, experts, tile_size)
        for ids in (torch.zeros(pairs), torch.arange(pairs) % experts, torch.arange(pairs) // 17):
            counts = ids.long().clamp(max=experts - 1).bincount(minlength=experts)
            assert int((-(-counts // tile_size)).sum()) <= room
