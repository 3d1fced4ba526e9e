"""Grouped integer weights are exact from every storage, and Triton multiplies them correctly."""

from __future__ import annotations

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.test_dequantize import KINDS, random_storage
from vllm_lite.kernels import grouped_weight
from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.grouped_gguf import from_gguf
from vllm_lite.kernels.grouped_weight import (
    GroupedWeight,
    expand,
    expand_rows,
    make_grouped,
)
from vllm_lite.kernels.pieces import rows_at_once
from vllm_lite.kernels.reference import grouped_linear as reference_grouped
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.kernels.reference.rounding import ActivationRounding, round_activations

# Whatever can be loaded in blocks can be multiplied by on a GPU.
GROUPED = [kind for kind in KINDS if kind.name not in ("F32", "F16", "BF16")]


def inputs_of(kind: GGMLQuantizationType) -> int:
    """Whole blocks, which may end within a chunk."""
    return max(96, 3 * GGML_QUANT_SIZES[kind][0]) if GGML_QUANT_SIZES[kind][0] < 256 else 512


def gguf_weight(kind: GGMLQuantizationType, outputs: int) -> tuple[torch.Tensor, PackedWeight]:
    """A random weight as the reference expands it, and as a GPU multiplies by it."""
    inputs = inputs_of(kind)
    raw = random_storage(kind, outputs, inputs)
    expected = reference.dequantize_gguf(raw, int(kind), (outputs, inputs), torch.float32)
    return expected, from_gguf(raw, int(kind), outputs)


def with_zeros(
    outputs: int, inputs: int, group: int, bits: int = 4, *, is_ordered: bool = True
) -> tuple[torch.Tensor, GroupedWeight]:
    """Integers as AWQ's and GPTQ's, whose zero points are less by one: values and weight."""
    codes = torch.randint(2**bits, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // group).half()
    zeros = torch.randint(2**bits, scales.shape, dtype=torch.uint8)
    wide = [plane.float().repeat_interleave(group, dim=1) for plane in (zeros, scales)]
    expected = (codes.float() - 1 - wide[0]) * wide[1]
    order = None if is_ordered else torch.randperm(inputs)
    weight = make_grouped(codes, scales, bits, 1, zeros=zeros, permutation=order)
    return expected if order is None else expected[:, order.argsort()], weight


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_gguf_keeps_every_value(kind: GGMLQuantizationType) -> None:
    expected, weight = gguf_weight(kind, 5)
    assert torch.equal(reference_grouped.expand_grouped(weight, torch.float32), expected)
    # Digits of base 3 take two bits, and scales of 4 bits a byte.
    larger = {"TQ1_0": 1.23, "Q2_K": 1.2}.get(kind.name, 1.15)
    raw = random_storage(kind, 5, 768)
    assert from_gguf(raw, int(kind), 5).nbytes <= larger * raw.nbytes


def test_zero_points_and_orders_keep_every_value() -> None:
    for expected, weight in (
        with_zeros(16, 64, 32),
        with_zeros(16, 64, 32, is_ordered=False),
        with_zeros(16, 64, 32, bits=8, is_ordered=False),
        with_zeros(8, 96, 96, bits=8),
    ):
        assert torch.equal(expand(weight), expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_of_all_widths_and_tables(bits: int) -> None:
    torch.manual_seed(bits)
    codes = torch.randint(2**bits, (5, 144), dtype=torch.uint8)
    table = torch.randn(2**bits)
    for size in (16, 48, 64, 144):
        scales = torch.rand(5, -(-144 // size))
        by_input = scales.repeat_interleave(size, dim=1)[:, :144]
        integers = make_grouped(codes, scales, bits, offset=2, group_size=size)
        assert torch.equal(expand(integers), (codes.float() - 2) * by_input)
        of_table = make_grouped(codes, scales, bits, table=table, group_size=size)
        values = expand(of_table)
        assert torch.equal(values, table[codes.long()] * by_input)
        rows = torch.tensor([4, 0, 4])
        assert torch.equal(expand_rows(of_table, rows), values[rows])


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_scales_of_a_byte_have_a_scale_of_each_output(kind: torch.dtype) -> None:
    codes, table = torch.randint(16, (3, 64), dtype=torch.uint8), torch.randn(16)
    scales, super_scales = torch.rand(3, 4).to(kind), torch.rand(3, 1)
    weight = make_grouped(codes, scales, 4, table=table, super_scales=super_scales)
    factors = scales.float() * super_scales
    expected = table[codes.long()] * factors.repeat_interleave(16, dim=1)
    assert torch.equal(expand(weight), expected)


def test_activations_are_rounded_by_scales_given_or_found() -> None:
    x = torch.randn(3, 64)
    given = round_activations(x, ActivationRounding(torch.int8, scale=torch.ones(1) / 8))
    assert torch.equal(given, (x * 8).round() / 8)
    for size in (0, 16):
        rounded = round_activations(x, ActivationRounding(torch.int8, size))
        steps = x.view(3, -1, size or 64).abs().amax(-1, keepdim=True) / 127
        assert ((rounded - x).view(3, -1, size or 64).abs() <= steps * 0.501).all()


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="in 5 groups"):
        make_grouped(torch.zeros(8, 64, dtype=torch.uint8), torch.rand(8, 5), 4)


def test_groups_that_kernels_cannot_read_are_padded() -> None:
    """And the last may be short."""
    codes, scales = torch.randint(16, (3, 60), dtype=torch.uint8), torch.rand(3, 3)
    order = torch.randperm(60)
    for permutation in (None, order):
        weight = make_grouped(codes, scales, 4, 8, group_size=24, permutation=permutation)
        assert (weight.group_size, weight.num_inputs, weight.num_padded) == (32, 96, 36)
        expected = (codes.float() - 8) * scales.repeat_interleave(24, dim=1)[:, :60]
        expected = expected if permutation is None else expected[:, permutation.argsort()]
        assert torch.equal(expand(weight), expected)


def check_triton(weight: PackedWeight, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops
    from vllm_lite.kernels.gpu.triton.products.small_products import takes

    values = ops.expand_grouped(weight, dtype)
    assert torch.equal(values, reference_grouped.expand_grouped(weight, dtype))
    for rows in (1, 17):
        x = torch.randn(rows, weight.num_inputs + 2).to(dtype)[:, : weight.num_inputs]
        bias = torch.randn(weight.num_outputs) if rows > 1 else None
        ours = ops.grouped_linear(x, weight, bias, torch.float32)
        # Few rows may be multiplied by numbers that are not rounded to the activations' type.
        is_exact = takes(weight, rows)
        theirs = reference_grouped.grouped_linear(
            x.float() if is_exact else x, weight, bias, torch.float32
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_linear_with_gguf_weights(kind: GGMLQuantizationType) -> None:
    check_triton(gguf_weight(kind, 70)[1], torch.float16)


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_look_ups(kind: GGMLQuantizationType) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    inputs = inputs_of(kind)
    raw = random_storage(kind, 9, inputs)
    weight = ops.pack_quantized([QuantizedRows(raw.view(9, -1), int(kind), inputs)])
    for ids in (torch.tensor([8]), torch.tensor([3, 0, 8, 3] * 5), torch.arange(0)):
        ours = ops.quantized_lookup(weight, ids, torch.float16)
        assert torch.equal(ours, reference_grouped.quantized_lookup(weight, ids, torch.float16))


def test_parts_of_several_types_are_side_by_side() -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    kinds = [GGMLQuantizationType.Q4_0] * 2 + [GGMLQuantizationType.Q8_0]
    rows = [
        QuantizedRows(random_storage(kind, size, 96).view(size, -1), int(kind), 96)
        for kind, size in zip(kinds, (5, 7, 3), strict=True)
    ]
    weight = ops.pack_quantized(rows)
    assert [part.weight.num_outputs for part in weight.parts] == [12, 3]
    x, bias = torch.randn(1, 96), torch.randn(15)
    ours = ops.quantized_linear(x, weight, bias, torch.float32)
    theirs = reference_grouped.quantized_linear(x, weight, bias, torch.float32)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    values = [expand(part.weight) for part in weight.parts]
    torch.testing.assert_close(ours, x @ torch.cat(values).T + bias, rtol=1e-4, atol=1e-4)


def test_linear_with_zero_points() -> None:
    check_triton(with_zeros(8, 128, 128)[1], torch.float32)
    check_triton(with_zeros(8, 128, 64, is_ordered=False)[1], torch.float32)
    check_triton(with_zeros(8, 128, 64, bits=8, is_ordered=False)[1], torch.float32)
    check_triton(with_zeros(12, 96, 96, bits=8)[1], torch.float32)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_linear_with_tables_and_few_bits(bits: int) -> None:
    codes, table = torch.randint(2**bits, (9, 144), dtype=torch.uint8), torch.randn(2**bits)
    for size in (16, 48, 144):
        scales = torch.rand(9, 144 // size)
        check_triton(make_grouped(codes, scales, bits, offset=1), torch.float32)
        check_triton(make_grouped(codes, scales, bits, table=table), torch.float32)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_linear_with_scales_of_a_byte(kind: torch.dtype) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    codes, table = torch.randint(16, (9, 96), dtype=torch.uint8), torch.randn(16)
    scales, super_scales = torch.rand(9, 6).to(kind), torch.rand(9, 1)
    weight = make_grouped(codes, scales, 4, table=table, super_scales=super_scales)
    packed = ops.pack_grouped(weight)
    assert torch.equal(expand(packed), expand(weight))
    check_triton(packed, torch.float32)
    looked = ops.grouped_lookup(packed, torch.tensor([8, 0]), torch.float32)
    assert torch.equal(looked, expand(weight)[[8, 0]])


def test_many_rows_use_the_dequantised_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops
    from vllm_lite.kernels.gpu.triton.products import grouped_linear

    expected, weight = gguf_weight(GGMLQuantizationType.Q4_0, 6)
    x = torch.randn(4, 96)
    monkeypatch.setattr(grouped_linear, "MANY_ROWS", 4)
    torch.testing.assert_close(ops.grouped_linear(x, weight), x @ expected.T)


def test_split_sums_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu import tuning
    from vllm_lite.kernels.gpu.triton import ops

    _, weight = gguf_weight(GGMLQuantizationType.Q4_K, 5)
    x, bias = torch.randn(2, 512), torch.randn(5)
    whole = ops.grouped_linear(x, weight, bias)
    monkeypatch.setattr(tuning, "processor_count", lambda _: 100)
    torch.testing.assert_close(ops.grouped_linear(x, weight, bias), whole, rtol=1e-4, atol=1e-4)


class _Count(TorchDispatchMode):
    """Counts operations, each of which is a launch on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.operations += 1
        return func(*args, **(kwargs or {}))


def test_a_gpu_packs_a_layer_in_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_weight, "rows_at_once", lambda columns, device, cached: 1 << 20)
    assert rows_at_once(14_336, torch.device("cuda"), 1 << 16) >= 4096
    with _Count() as counted:
        make_grouped(torch.zeros(512, 4096, dtype=torch.uint8), torch.zeros(512, 32), 4)
    assert counted.operations <= 24
