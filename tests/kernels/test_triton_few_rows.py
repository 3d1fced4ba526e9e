"""Products of few rows by weights stored row by row in Triton's interpreter, and activations."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from vllm_lite.kernels import dispatch
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.gpu.triton.products import few_rows, row_products
from vllm_lite.kernels.grouped_parts import GroupedPart, GroupedParts
from vllm_lite.kernels.grouped_weight import make_grouped
from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.kernels.reference.ops import GpuOps as reference
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.quantized import QuantizedKernel
from vllm_lite.quantization.scaled import ScaledKernel
from vllm_lite.quantization.unquantized import gated_kernel, plain_kernel


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype is theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["", "silu", "gelu"])
@pytest.mark.parametrize(("rows", "processors"), [(1, 1000), (3, 1)])
def test_plain_weights(
    dtype: torch.dtype,
    activation: str,
    rows: int,
    processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "processor_count", lambda _: processors)
    monkeypatch.setattr(row_products, "_torch_product", None)
    monkeypatch.setattr(row_products, "MOST_ROWS", rows)
    x, weight, bias = torch.randn(rows, 1096), torch.randn(6, 1096), torch.randn(6)
    arguments = (x.to(dtype), weight.to(dtype), bias.to(dtype), torch.float32, activation)
    close(ops.plain_linear(*arguments), reference.plain_linear(*arguments))


@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("activation", ["", "silu"])
@pytest.mark.parametrize(("rows", "processors"), [(1, 1000), (2, 1), (5, 1)])
def test_norm_in_front(
    has_residual: bool,
    activation: str,
    rows: int,
    processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "processor_count", lambda _: processors)
    x, residual = torch.randn(2, rows, 1096).half()
    norm_weight, weight = torch.randn(1096).half() / 30, torch.randn(6, 1096).half()

    def multiply(implementation: type | object) -> tuple[Tensor, Tensor]:
        norm = InputNorm(residual.clone() if has_residual else None, norm_weight, 1e-5)
        by = (weight, torch.ones(6).half(), torch.half, activation)
        found: tuple[Tensor, Tensor] = implementation.normed_plain_linear(x.clone(), norm, *by)
        return found

    ours, theirs = multiply(ops), multiply(reference)
    assert torch.equal(ours[1], theirs[1])
    torch.testing.assert_close(ours[0], theirs[0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("inputs", "rows", "dtype"), [(68, 1, "half"), (64, 3, "half"), (64, 1, "float")]
)
def test_torch_multiplies_by_other_weights(inputs: int, rows: int, dtype: str) -> None:
    assert not row_products.takes(torch.zeros(6, inputs, dtype=getattr(torch, dtype)), rows)
    assert row_products.takes(torch.zeros(6, 64, dtype=torch.half), 1)


@pytest.mark.parametrize("processors", [1000, 1])
@pytest.mark.parametrize("activation", ["", "silu"])
def test_split_sums_have_the_same_bits_each_time(
    processors: int, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "processor_count", lambda _: processors)
    codes = torch.randint(16, (6, 4160), dtype=torch.uint8)
    weight = make_grouped(codes, torch.rand(6, 130), 4, 8)
    x, bias = torch.randn(2, 4160) / 30, torch.randn(6)

    def multiply(implementation: type | object) -> Tensor:
        if activation:
            return implementation.gated_grouped_linear(x, weight, bias, activation)
        return implementation.grouped_linear(x, weight, bias)

    ours = multiply(ops)
    close(ours, multiply(reference))
    assert torch.equal(ours, multiply(ops))


def test_every_processor_has_programs_enough() -> None:
    for shape, (warps, bits, lanes), processors, spans in product(
        [(2560, 2048), (4096, 4096), (28672, 4096), (4096, 14336), (151936, 1024), (9, 30_000)],
        [(8, 16, (2, 1)), (4, 8, (4, 1)), (4, 8, (8, 1)), (4, 4, (16, 2))],
        [1, 108, 132],
        [(4, 1), (4, 2), (2, 2), (8, 1)],
    ):
        (outputs, inputs), limits = shape, few_rows.CutLimits(warps, bits, lanes, spans)
        cut = few_rows.Cut.of(shape, limits, processors)
        step = limits.step(cut.lanes)
        assert step == 32 * warps // cut.lanes * (128 // bits)
        assert cut.tiles * cut.lanes * cut.span >= outputs
        assert cut.parts * cut.steps * step >= inputs > (cut.parts - 1) * cut.steps * step
        assert lanes[1] <= cut.lanes <= lanes[0] and spans[1] <= cut.span <= spans[0]
        wanted = 4 if cut.lanes * cut.span > 16 else 2
        has_many = cut.tiles * cut.parts >= wanted * processors
        is_smallest = cut.span == spans[1] and (cut.lanes == lanes[1] or step >= inputs)
        assert has_many or is_smallest
        assert cut.parts == 1 or is_smallest


def test_activations_are_fused_behind_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_selected", ops)
    monkeypatch.setattr(dispatch, "_plain_name", "Triton")
    grouped = make_grouped(torch.randint(16, (8, 64), dtype=torch.uint8), torch.rand(8, 2), 4, 8)
    parts = GroupedParts((GroupedPart(grouped, 2),), 8, 64)
    x = torch.randn(2, 64, dtype=torch.half)
    for kernel in (
        plain_kernel(torch.randn(8, 64, dtype=torch.half), None, None),
        GroupedKernel(grouped, None, None, ops),
        QuantizedKernel(parts, None, None, ops),
    ):
        fused = gated_kernel(kernel, "gelu")
        assert fused is not None
        torch.testing.assert_close(fused(x), reference.act_and_mul(kernel(x), "gelu"))
    # Rows with a scale each are rounded with the activation instead.
    codes, scales = reference.quantize_rows(torch.randn(8, 64), torch.int8)
    assert gated_kernel(ScaledKernel(codes, scales, None, None, ops), "gelu") is None
    monkeypatch.setattr(dispatch, "_deterministic", True)
    assert gated_kernel(plain_kernel(x.new_ones(8, 64), None, None), "silu") is None
