"""Mixtures of experts equal the reference, and a token's result depends on its row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.quantization.online import to_q4_1, to_q8_0

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


def make(case: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Any, Any]:
    """x, ids, weights, and the two weights of every expert."""
    tokens, experts, choices, inputs, hidden = case
    weights, ids = reference.route_topk(torch.randn(tokens, experts), choices)
    gate_up = (torch.randn(experts, 2 * hidden, inputs) / inputs**0.5).to(dtype)
    down = (torch.randn(experts, inputs, hidden) / hidden**0.5).to(dtype)
    return torch.randn(tokens, inputs).to(dtype), ids, weights, gate_up, down


def packed(stack: Tensor) -> Any:
    return cpu.pack_experts([cpu.pack_linear(weight) for weight in stack])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("is_renormalized", [True, False])
def test_routing(is_renormalized: bool) -> None:
    for tokens, experts, choices in [(1, 8, 2), (300, 5, 5), (20, 129, 8), (0, 3, 1), (7, 1024, 3)]:
        logits = torch.randn(tokens, experts + 3)[:, :experts].round(decimals=1)  # some are equal
        weights, ids = cpu.route_topk(logits, choices, is_renormalized)
        expected = reference.route_topk(logits, choices, is_renormalized)
        assert torch.equal(ids, expected[1])
        torch.testing.assert_close(weights, expected[0])


@pytest.mark.usefixtures("isa")
def test_routing_of_nan_gives_valid_ids() -> None:
    logits = torch.full((4, 6), torch.nan)
    logits[1] = -torch.inf
    logits[2, 4] = torch.inf
    logits[3, ::2] = 1.0
    for row in cpu.route_topk(logits, 3)[1].tolist():
        assert len(set(row) & set(range(6))) == 3


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_experts_mlp(dtype: torch.dtype, act: str) -> None:
    _cpu.set_num_threads(3)
    for case in CASES:
        x, ids, weights, gate_up, down = make(case, dtype)
        expected = reference.experts_mlp(x, ids, weights, gate_up, down, act)
        actual = cpu.experts_mlp(x, ids, weights, packed(gate_up), packed(down), act)
        tolerance = 1e-4 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        wide = cpu.experts_mlp(
            x, ids, weights, packed(gate_up), packed(down), act, out_dtype=torch.float32
        )
        assert torch.equal(wide.to(dtype), actual)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", ["plain", "Q8_0", "Q4_1"])
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


def quantized(stack: Tensor, storage: str) -> Any:
    convert, kind = {"Q8_0": (to_q8_0, 8), "Q4_1": (to_q4_1, 3)}[storage]
    rows = [QuantizedRows(convert(weight), kind, weight.shape[1]) for weight in stack]
    return cpu.pack_experts([cpu.pack_quantized([weight]) for weight in rows])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", ["Q8_0", "Q4_1"])
def test_quantised_experts_equal_their_linear_layers(dtype: torch.dtype, storage: str) -> None:
    x, ids, weights, *stacks = make((21, 6, 3, 64, 96), dtype)
    gate_up, down = (quantized(stack, storage) for stack in stacks)
    actual = cpu.experts_mlp(x, ids, weights, gate_up, down, "gelu")
    expected = torch.zeros(x.shape)
    for token, experts in enumerate(ids.tolist()):
        for choice, expert in enumerate(experts):
            hidden = cpu.quantized_linear(x[token : token + 1], gate_up.weights[expert])
            hidden = cpu.act_and_mul(hidden, "gelu")
            made = cpu.quantized_linear(hidden, down.weights[expert], None, torch.float32)
            expected[token] += made[0] * weights[token, choice]
    # The same products, bit by bit; sums may be rounded once less.
    tolerance = 1e-6 if dtype is torch.float32 else 8e-3
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("isa")
def test_other_experts_add_nothing() -> None:
    x, ids, weights, gate_up, down = make((17, 7, 3, 40, 32), torch.float32)
    for module, pack in ((cpu, packed), (reference, lambda stack: stack)):
        parts = [
            module.experts_mlp(
                x, ids, weights, pack(gate_up[first:end]), pack(down[first:end]), "silu", first
            )
            for first, end in ((0, 3), (3, 7))
        ]
        whole = reference.experts_mlp(x, ids, weights, gate_up, down)
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
        cpu.route_topk(torch.randn(2, 3), 4)
    with pytest.raises(ValueError, match="unknown"):
        cpu.experts_mlp(x, ids, weights, gate_up, down, "swoosh")
    with pytest.raises(ValueError, match="one form"):
        cpu.pack_experts([cpu.pack_linear(stacks[0][0]), cpu.pack_linear(stacks[1][0])])
