"""Mixtures of experts equal the reference, and a token's result depends on its row alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.test_codebooks import random_weight
from vllm_lite import _cpu
from vllm_lite.kernels.codebook_weight import CodebookWeight
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.kernels.reference.experts import ExpertForm, ExpertStack, Routing
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.quantization.ggml_blocks import to_q4_1, to_q8_0

DTYPES = [torch.float32, torch.bfloat16]
# tokens, experts, experts of a token, inputs, hidden: whole panels, parts of them, odd sizes,
# more tokens of an expert than a block has rows, more experts than pairs, none.
CASES = [
    (1, 8, 2, 64, 32),
    (5, 5, 5, 40, 70),
    (33, 4, 3, 31, 7),
    (430, 3, 2, 48, 64),
    (2, 200, 8, 33, 32),
    (0, 4, 2, 32, 32),
]


INT8, FP8 = torch.int8, torch.float8_e4m3fn
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# By an expert's own scale [1].
ROUNDINGS: dict[str, Callable[[Tensor], ActivationRounding]] = {
    "int8": lambda _: ActivationRounding(INT8),
    "int8 static": lambda scale: ActivationRounding(INT8, scale=scale),
    "int8 shifted": lambda _: ActivationRounding(INT8, is_shifted=True),
    "int8 shifted static": lambda scale: ActivationRounding(
        INT8, scale=scale, is_shifted=True, zero=(scale * 500 - 60).round()
    ),
    "fp8 static": lambda scale: ActivationRounding(FP8, scale=scale),
    "e5m2": lambda _: ActivationRounding(torch.float8_e5m2),
    "fp8 groups of 128": lambda _: ActivationRounding(FP8, 128),
    "fp8 groups of 128 by powers": lambda _: ActivationRounding(FP8, 128, scales="ue8m0"),
    "fp8 groups of 48": lambda _: ActivationRounding(FP8, 48),
    "fp8 bounded": lambda _: ActivationRounding(FP8, largest=0.5),
    "mxfp4": lambda _: ActivationRounding(FP8, 32, values=FP4, scales="e8m0"),
    "nvfp4": lambda scale: ActivationRounding(FP8, 16, scale / 20, FP4, scales="float8_e4m3fn"),
}


def roundings(name: str, experts: int) -> list[ActivationRounding]:
    """Those of experts, each with a scale of its own."""
    return [ROUNDINGS[name](torch.tensor([0.02 + 0.01 * expert])) for expert in range(experts)]


def make(case: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Any, Any]:
    """x, ids, weights, and the two weights of every expert."""
    tokens, experts, choices, inputs, hidden = case
    weights, ids = reference.route_topk(torch.randn(tokens, experts), Routing(top_k=choices))
    gate_up = (torch.randn(experts, 2 * hidden, inputs) / inputs**0.5).to(dtype)
    down = (torch.randn(experts, inputs, hidden) / hidden**0.5).to(dtype)
    return torch.randn(tokens, inputs).to(dtype), ids, weights, gate_up, down


def packed(stack: Tensor, bias: Tensor | None = None) -> Any:
    weights = [cpu.pack_linear(weight) for weight in stack]
    return cpu.pack_experts(weights, None if bias is None else list(bias))


FORMS = [
    ExpertForm(),
    ExpertForm(act="gelu"),
    ExpertForm(act="gelu_quick", limit=0.5, shift=1.0),
    ExpertForm(scales_inputs=True),
]


# Tokens and experts, how they are chosen, and whether there is a bias.
ROUTINGS = [
    (1, 8, Routing(top_k=2), False),
    (300, 5, Routing(top_k=5, is_renormalized=False), False),
    (20, 129, Routing(top_k=8), True),
    (0, 3, Routing(top_k=1), False),
    (7, 1024, Routing(top_k=3, scale=2.5), False),
    (33, 12, Routing(top_k=3, scores="sigmoid", epsilon=1e-3, scale=1.5), True),
    (33, 12, Routing(top_k=3, num_groups=4, top_groups=2, is_renormalized=False), False),
    (
        33,
        30,
        Routing(top_k=8, scores="sigmoid", num_groups=3, top_groups=2, best_of_group=2),
        True,
    ),
    (
        40,
        16,
        Routing(top_k=2, scores="sparsemixer", tolerance=0.4, is_renormalized=False),
        False,
    ),
]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("tokens", "experts", "routing", "has_bias"), ROUTINGS)
def test_routing(tokens: int, experts: int, routing: Routing, has_bias: bool) -> None:
    logits = torch.randn(tokens, experts + 3)[:, :experts].round(decimals=1)  # some are equal
    bias = torch.randn(experts) if has_bias else None
    factors = torch.rand(experts) if tokens % 2 else None
    weights, ids = cpu.route_topk(logits, routing, bias, factors)
    expected = reference.route_topk(logits, routing, bias, factors)
    if has_bias:  # sums that differ in the last bit may change places
        ids, by_id = ids.sort(-1)
        weights, expected = weights.gather(1, by_id), by_order(*expected)
    assert torch.equal(ids, expected[1])
    torch.testing.assert_close(weights, expected[0])


def by_order(weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    ordered = ids.sort(-1)
    return weights.gather(1, ordered.indices), ordered.values


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(
    "routing",
    [
        Routing(top_k=3),
        Routing(top_k=3, scores="sigmoid", num_groups=3, top_groups=2, best_of_group=2),
        Routing(top_k=3, scores="sparsemixer", tolerance=0.1),
    ],
)
def test_routing_of_nan_gives_valid_ids(routing: Routing) -> None:
    logits = torch.full((5, 6), torch.nan)
    logits[1] = -torch.inf
    logits[2, 4] = torch.inf
    logits[3, ::2] = 1.0
    logits[4] = torch.inf
    for row in cpu.route_topk(logits, routing)[1].tolist():
        assert len(set(row) & set(range(6))) == 3


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_gates", [False, True])
def test_experts_mlp(dtype: torch.dtype, form: ExpertForm, has_bias: bool, has_gates: bool) -> None:
    _cpu.set_num_threads(3)
    for case in CASES:
        x, ids, weights, *stacks = make(case, dtype)
        if not has_gates:
            stacks[0] = stacks[0][:, : case[-1]].contiguous()
        biases = [torch.randn(stack.shape[:2]) if has_bias else None for stack in stacks]
        ours = [packed(*layer) for layer in zip(stacks, biases, strict=True)]
        theirs = [ExpertStack(*layer) for layer in zip(stacks, biases, strict=True)]
        actual = cpu.experts_mlp(x, ids, weights, *ours, form)
        expected = reference.experts_mlp(x, ids, weights, *theirs, form)
        tolerance = 1e-4 if dtype is torch.float32 else 4e-2
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        wide = cpu.experts_mlp(x, ids, weights, *ours, form, out_dtype=torch.float32)
        assert torch.equal(wide.to(dtype), actual)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", ["plain", "Q8_0", "Q4_1", "groups", *ROUNDINGS])
def test_a_token_alone_gives_the_same_bits_as_in_a_batch(dtype: torch.dtype, storage: str) -> None:
    for case in [(430, 3, 2, 64, 64), (40, 30, 5, 64, 96), (33, 8, 8, 32, 32)]:
        x, ids, weights, *stacks = make(case, dtype)
        pack = packed if storage == "plain" else (lambda stack: quantized(stack, storage))
        gate_up, down = (pack(stack) for stack in stacks)
        _cpu.set_num_threads(1)
        whole = cpu.experts_mlp(x, ids, weights, gate_up, down)
        _cpu.set_num_threads(3)
        assert torch.equal(cpu.experts_mlp(x, ids, weights, gate_up, down), whole)
        order = torch.randperm(len(x))
        mixed = cpu.experts_mlp(x[order], ids[order], weights[order], gate_up, down)
        assert torch.equal(mixed, whole[order])
        for row in range(0, len(x), 7):
            rows = slice(row, row + 1)
            alone = cpu.experts_mlp(x[rows], ids[rows], weights[rows], gate_up, down)
            assert torch.equal(alone, whole[rows])


def quantized(stack: Tensor, storage: str, biases: list[Tensor] | None = None) -> Any:
    if storage in ROUNDINGS:
        weights = [cpu.pack_grouped(in_bytes(weight)) for weight in stack]
        return cpu.pack_experts(weights, biases, roundings(storage, len(stack)))
    if storage == "groups":
        return cpu.pack_experts([cpu.pack_grouped(grouped(weight)) for weight in stack], biases)
    if storage == "books":  # of two parts, which end within a panel
        sizes, inputs = (24, stack.shape[1] - 24), stack.shape[2]
        parts = [[books(size, inputs) for size in sizes] for _ in stack]
        return cpu.pack_experts([tuple(map(cpu.pack_grouped, each)) for each in parts], biases)
    convert, kind = {"Q8_0": (to_q8_0, 8), "Q4_1": (to_q4_1, 3)}[storage]
    rows = [QuantizedRows(convert(weight), kind, weight.shape[1]) for weight in stack]
    return cpu.pack_experts([cpu.pack_quantized([weight]) for weight in rows], biases)


def books(outputs: int, inputs: int) -> CodebookWeight:
    weight = random_weight(2, outputs, inputs)
    return replace(weight, scales=weight.scales / inputs**0.5)


def in_bytes(weight: Tensor) -> GroupedWeight:
    """Eight bits with a scale for each output."""
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    return make_grouped((weight / scales + 128).round().to(torch.uint8), scales, 8, 128)


def grouped(weight: Tensor) -> GroupedWeight:
    """Four bits in groups of 32, with zero points and inputs in another order."""
    groups = weight.float().view(len(weight), -1, 32)
    scales = groups.abs().amax(2) / 8
    codes = (groups / scales[..., None] + 8).round().clamp(0, 15).to(torch.uint8).flatten(1)
    zeros = torch.full(scales.shape, 8, dtype=torch.uint8)
    order = torch.randperm(weight.shape[1])
    return make_grouped(codes, scales, 4, zeros=zeros, permutation=order)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", ["Q8_0", "Q4_1", "groups", "books", *ROUNDINGS])
def test_quantised_experts_equal_their_linear_layers(dtype: torch.dtype, storage: str) -> None:
    x, ids, weights, *stacks = make((21, 6, 3, 64, 96), dtype)
    biases = [torch.randn(stack.shape[:2]) for stack in stacks]
    gate_up, down = (
        quantized(stack, storage, list(bias)) for stack, bias in zip(stacks, biases, strict=True)
    )
    actual = cpu.experts_mlp(x, ids, weights, gate_up, down, ExpertForm(act="gelu"))
    expected = torch.zeros(x.shape)

    own = roundings(storage, 6) if storage in ROUNDINGS else [None] * 6

    def linear(x: Tensor, layer: int, expert: int, dtype: torch.dtype | None = None) -> Tensor:
        weight, bias = (gate_up, down)[layer].weights[expert], biases[layer][expert]
        if not isinstance(weight, tuple):
            return cpu.quantized_linear(x, weight, bias, dtype)
        parts = bias.split([part.num_outputs for part in weight])
        linear = partial(cpu.grouped_linear, x, out_dtype=dtype, rounding=own[expert])
        return torch.cat([linear(*part) for part in zip(weight, parts, strict=True)], 1)

    for token, experts in enumerate(ids.tolist()):
        for choice, expert in enumerate(experts):
            hidden = cpu.act_and_mul(linear(x[token : token + 1], 0, expert), "gelu")
            made = linear(hidden, 1, expert, torch.float32)
            expected[token] += made[0] * weights[token, choice]
    # The same products, bit by bit; sums may be rounded once less.
    tolerance = 1e-6 if dtype is torch.float32 else 8e-3
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("name", ROUNDINGS)
def test_rounded_experts_equal_the_reference(name: str, is_ordered: bool) -> None:
    """Of few numbers: one of the hidden rows between two codes may become either."""
    as_groups = in_bytes if is_ordered else grouped
    for case, form, has_gates, first in (
        ((1, 3, 2, 160, 32), ExpertForm(), True, 0),
        ((3, 4, 3, 32, 160), ExpertForm(act="gelu_quick", limit=0.5, shift=1.0), True, 0),
        ((4, 3, 1, 96, 64), ExpertForm(scales_inputs=True), False, 1),
        ((0, 4, 2, 32, 32), ExpertForm(), True, 0),
    ):
        x, ids, weights, *stacks = make(case, torch.float32)
        if not has_gates:
            stacks[0] = stacks[0][:, : case[-1]].contiguous()
        layers = []
        for stack in stacks:
            held = [as_groups(weight) for weight in stack]
            layers.append((held, list(torch.randn(stack.shape[:2])), roundings(name, len(stack))))
        actual, expected = (
            ops.experts_mlp(
                *(x, ids, weights),
                *(ops.pack_experts(list(map(ops.pack_grouped, held)), *by) for held, *by in layers),
                *(form, first),
            )
            for ops in (cpu, reference)
        )
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_roundings_unlike_each_other_are_refused() -> None:
    weights = [cpu.pack_grouped(in_bytes(torch.randn(32, 32))) for _ in range(2)]
    for first, second in (("int8", "int8 static"), ("mxfp4", "fp8 groups of 48")):
        unlike = [roundings(name, 1)[0] for name in (first, second)]
        with pytest.raises(ValueError, match="round what they read alike"):
            cpu.pack_experts(weights, None, unlike)
    plain = [cpu.pack_linear(torch.randn(32, 32))]
    with pytest.raises(ValueError, match="only what grouped weights read"):
        cpu.pack_experts(plain, None, roundings("int8", 1))


@pytest.mark.usefixtures("isa")
def test_other_experts_add_nothing() -> None:
    x, ids, weights, gate_up, down = make((17, 7, 3, 40, 32), torch.float32)
    for module, pack in ((cpu, packed), (reference, ExpertStack)):
        parts = [
            module.experts_mlp(
                x, ids, weights, pack(gate_up[first:end]), pack(down[first:end]), first_expert=first
            )
            for first, end in ((0, 3), (3, 7))
        ]
        whole = reference.experts_mlp(x, ids, weights, ExpertStack(gate_up), ExpertStack(down))
        torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    x, ids, weights, *stacks = make((3, 4, 2, 32, 32), torch.float32)
    gate_up, down = (packed(stack) for stack in stacks)
    for broken in (
        (x.bfloat16(), ids, weights, gate_up, down),
        (x[:, :31], ids, weights, gate_up, down),
        (x, ids.long(), weights, gate_up, down),
        (x, ids, weights[:2], gate_up, down),
        (x, ids, weights, down, gate_up),
        (x, ids, weights, gate_up, packed(stacks[1][:3])),
    ):
        with pytest.raises(ValueError, match="experts_mlp"):
            cpu.experts_mlp(*broken)
    with pytest.raises(ValueError, match="route_topk"):
        cpu.route_topk(torch.randn(2, 3), Routing(top_k=4))
    with pytest.raises(ValueError, match="groups of one size"):
        cpu.route_topk(torch.randn(2, 5), Routing(top_k=1, num_groups=2))
    with pytest.raises(ValueError, match="unknown"):
        cpu.experts_mlp(x, ids, weights, gate_up, down, ExpertForm(act="swoosh"))
    with pytest.raises(ValueError, match="one form"):
        cpu.pack_experts([cpu.pack_linear(stacks[0][0]), cpu.pack_linear(stacks[1][0])])
