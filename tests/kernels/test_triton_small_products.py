"""Products of few rows by weights in groups in Triton's interpreter, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.gpu.triton.products import grouped_linear, small_products
from vllm_lite.kernels.grouped_weight import GroupedWeight, expand, make_grouped

OUTPUTS = 70


def codes(bits: int, inputs: int) -> torch.Tensor:
    return torch.randint(2**bits, (OUTPUTS, inputs), dtype=torch.uint8)


def scales(groups: int) -> torch.Tensor:
    return torch.rand(OUTPUTS, groups) + 0.1


def zeros(groups: int) -> torch.Tensor:
    return torch.randint(16, (OUTPUTS, groups), dtype=torch.uint8)


def bytes_of(groups: int) -> torch.Tensor:
    return torch.randint(1, 64, (OUTPUTS, groups), dtype=torch.uint8)


WEIGHTS: dict[str, Callable[[], GroupedWeight]] = {
    "offset of 4 bits": lambda: make_grouped(codes(4, 544), scales(17), 4, 8),
    "minimums of 4 bits": lambda: make_grouped(
        codes(4, 320), scales(10).half(), 4, minimums=scales(10).half()
    ),
    "zeros of 4 bits": lambda: make_grouped(codes(4, 208), scales(13), 4, zeros=zeros(13)),
    "zeros that are floats": lambda: make_grouped(
        codes(4, 256), scales(4).half(), 4, zeros=15 * scales(4).half()
    ),
    "short last group": lambda: make_grouped(codes(4, 200), scales(4), 4, 8, group_size=64),
    "Q4_K": lambda: make_grouped(
        codes(4, 512),
        bytes_of(16),
        4,
        minimums=bytes_of(16),
        super_scales=scales(2).half() / 64,
        super_minimums=scales(2).half() / 64,
    ),
    "table of 4 bits": lambda: make_grouped(
        codes(4, 256), scales(16), 4, table=torch.randn(16), super_scales=scales(1)
    ),
    "act-order": lambda: make_grouped(
        codes(4, 256), scales(2), 4, zeros=zeros(2), permutation=torch.randperm(256)
    ),
    "offset of 8 bits": lambda: make_grouped(codes(8, 544), scales(17), 8, 128),
    "minimums of 8 bits": lambda: make_grouped(codes(8, 96), scales(3), 8, minimums=scales(3)),
    "table of 8 bits": lambda: make_grouped(codes(8, 256), scales(2), 8, table=torch.randn(256)),
    "rows of 8 bits": lambda: make_grouped(codes(8, 501), scales(1), 8, 128),
}


@pytest.mark.parametrize(("rows", "processors"), [(1, 1), (3, 100), (4, 4)])
@pytest.mark.parametrize("name", WEIGHTS)
def test_products_of_few_rows_are_those_of_the_values(
    name: str, rows: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "processor_count", lambda _: processors)
    weight, bias = WEIGHTS[name](), torch.randn(OUTPUTS)
    x = torch.randn(rows, weight.num_inputs + 5)[:, : weight.num_inputs]
    assert small_products.takes(weight, rows)
    ours = ops.grouped_linear(x, ops.pack_grouped(weight), bias)
    expected = x.double() @ expand(weight).double().T + bias
    assert ours.shape == (rows, OUTPUTS)
    assert (ours - expected).abs().max() < 1e-5 * expected.square().mean().sqrt()


@pytest.mark.parametrize("name", ["offset of 4 bits", "minimums of 4 bits", "offset of 8 bits"])
def test_products_of_halves_are_as_exact_as_their_sums(name: str) -> None:
    weight = WEIGHTS[name]()
    x = torch.randn(2, weight.num_inputs).half()
    expected = x.double() @ expand(weight).double().T
    ours = ops.grouped_linear(x, ops.pack_grouped(weight), None, torch.float32)
    assert (ours - expected).abs().max() < 4e-5 * expected.square().mean().sqrt()


@pytest.mark.parametrize(("bits", "rows"), [(4, 5), (4, 16), (2, 1), (3, 1), (5, 1), (6, 1)])
def test_other_products_have_the_other_kernel(
    bits: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped_linear, "small_product", None)
    weight = make_grouped(codes(bits, 64), scales(2), bits)
    assert not small_products.takes(weight, rows)
    x = torch.randn(rows, 64)
    ours, expected = ops.grouped_linear(x, weight), x @ expand(weight).T
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-3)
