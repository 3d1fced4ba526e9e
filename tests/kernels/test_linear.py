"""Linear layers by packed weights equal the reference, independently of the batch."""

from __future__ import annotations

import math

import pytest
import torch

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]
# (rows, inputs, outputs): every height of a tile, odd inputs, parts of a panel, several blocks.
SHAPES = [
    *((rows, 40, 70) for rows in range(1, 27)),
    (3, 1, 1),
    (5, 7, 31),
    (64, 577, 33),
    (400, 96, 129),
    (0, 16, 32),
]


@pytest.mark.usefixtures("product_isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype: torch.dtype, with_bias: bool) -> None:
    for rows, inputs, outputs in SHAPES:
        x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        bias = torch.randn(outputs) if with_bias else None
        packed = cpu.pack_linear(weight)
        for out_dtype in DTYPES:
            expected = reference.linear(x, reference.pack_linear(weight), bias, out_dtype)
            actual = cpu.linear(x, packed, bias, out_dtype)
            tolerance = 1e-4 if out_dtype == torch.float32 else 8e-3
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=1e-4 * inputs**0.5)


@pytest.mark.usefixtures("product_isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_gives_the_same_bits_as_in_a_batch(dtype: torch.dtype) -> None:
    x, weight = torch.randn(300, 130).to(dtype), torch.randn(100, 130).to(dtype)
    packed = cpu.pack_linear(weight)
    _cpu.set_num_threads(1)
    whole = cpu.linear(x, packed)
    _cpu.set_num_threads(3)
    assert torch.equal(cpu.linear(x, packed), whole)
    for row in (0, 1, 11, 12, 191, 192, 299):
        assert torch.equal(cpu.linear(x[row : row + 1], packed)[0], whole[row])
    assert torch.equal(cpu.linear(x[5:30], packed), whole[5:30])


@pytest.mark.usefixtures("product_isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_gated_linear_equals_its_two_steps_bit_for_bit(dtype: torch.dtype, with_bias: bool) -> None:
    _cpu.set_num_threads(3)
    # (rows, inputs, outputs of either half): whole panels, then a panel of both halves.
    for rows, inputs, size in [
        *((rows, 40, 64) for rows in (0, 1, 2, 11, 12, 13, 33)),
        (400, 577, 96),
        (5, 31, 35),
        (4, 9, 24),
        (3, 1, 1),
    ]:
        x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(2 * size, inputs).to(dtype)
        bias = torch.randn(2 * size) if with_bias else None
        packed, plain = cpu.pack_linear(weight), reference.pack_linear(weight)
        actual = cpu.gated_linear(x, packed, bias)
        assert torch.equal(actual, cpu.act_and_mul(cpu.linear(x, packed, bias), "silu"))
        assert torch.equal(cpu.gated_linear(x[:1], packed, bias), actual[:1])
        tolerance = 1e-4 if dtype == torch.float32 else 3e-2
        expected = reference.gated_linear(x, plain, bias)
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * inputs**0.5)


def panels(weight: torch.Tensor) -> torch.Tensor:
    """The packed bytes by their description: words of 4 bytes of 32 outputs side by side."""
    outputs, inputs = weight.shape
    per_word = 4 // weight.element_size()
    padded = weight.new_zeros(-(-outputs // 32) * 32, -(-inputs // per_word) * per_word)
    padded[:outputs, :inputs] = weight
    words = padded.view(torch.int32).view(len(padded) // 32, 32, -1)
    return words.transpose(1, 2).contiguous().view(torch.uint8).flatten()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [50, 128, 7, 1])
def test_the_packed_layout_is_the_same_on_every_isa(dtype: torch.dtype, inputs: int) -> None:
    # Values of many magnitudes, from an address that is no multiple of theirs.
    values = torch.randn(165, inputs) * 2.0 ** torch.randint(-60, 60, (165, inputs))
    size = values.to(dtype).nbytes
    weight = torch.frombuffer(bytearray(size + 1), dtype=dtype, offset=1, count=165 * inputs)
    weight = weight.view(165, inputs).copy_(values)
    before = _cpu.selected_isa()
    for isa in _cpu.supported_isas():
        _cpu.select_isa(isa)
        packed = cpu.pack_linear(weight)
        assert torch.equal(packed.data, panels(weight))
        assert packed.largest == weight.abs().max()
    _cpu.select_isa(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(32, 96), (20, 21, 70), (0, 64, 64, 165)])
def test_rows_packed_part_by_part_are_the_same_bytes(
    dtype: torch.dtype, cuts: tuple[int, ...]
) -> None:
    weight = torch.randn(165, 75).to(dtype)
    before = _cpu.selected_isa()
    for isa in _cpu.supported_isas():
        _cpu.select_isa(isa)
        data = None
        for rows, first in reversed([*zip(weight.tensor_split(cuts), (0, *cuts), strict=True)]):
            packed = cpu.pack_linear(rows, 165, first, data)
            assert packed.largest == (rows.abs().max() if len(rows) else 0)
            plain = reference.pack_linear(rows, 165, first, torch.zeros(165, 75, dtype=dtype))
            assert plain.largest == packed.largest
            data = packed.data
        assert torch.equal(packed.data, panels(weight))
    _cpu.select_isa(before)
    with pytest.raises(ValueError, match="do not fit"):
        cpu.pack_linear(weight, 165, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf, -3e38])
def test_packing_finds_the_largest_number(dtype: torch.dtype, bad: float) -> None:
    before = _cpu.selected_isa()
    for isa in _cpu.supported_isas():
        _cpu.select_isa(isa)
        for place in ((0, 0), (7, 1), (31, 63), (33, 2), (34, 65)):
            weight = torch.randn(35, 66).to(dtype)
            weight[place] = bad
            expected = reference.pack_linear(weight).largest
            found = cpu.pack_linear(weight).largest
            assert found == expected or (math.isnan(found) and math.isnan(expected))
    _cpu.select_isa(before)


def test_strided_rows() -> None:
    wide, weight = torch.randn(6, 100), torch.randn(8, 60)
    view = wide[:, 20:80]
    expected = reference.linear(view, reference.pack_linear(weight))
    torch.testing.assert_close(cpu.linear(view, cpu.pack_linear(weight)), expected)
    half = weight[:, 10:40]
    expected = reference.linear(wide[:, :30], reference.pack_linear(half))
    torch.testing.assert_close(cpu.linear(wide[:, :30], cpu.pack_linear(half)), expected)


def test_what_does_not_fit_is_refused() -> None:
    packed = cpu.pack_linear(torch.randn(8, 16))
    for x in (torch.randn(2, 15), torch.randn(2, 16, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="linear"):
            cpu.linear(x, packed)
        with pytest.raises(ValueError, match="gated_linear"):
            cpu.gated_linear(x, packed)
    with pytest.raises(ValueError, match="bias"):
        cpu.linear(torch.randn(2, 16), packed, torch.randn(7))
    with pytest.raises(ValueError, match="dense rows"):
        cpu.linear(torch.randn(16, 2).T, packed)
