"""Weights in 12 bits: the products of plain packed ones, bit for bit, on every level."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels import emulated_tiles
from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.slim import pack_slim
from vllm_lite.kernels.reference.ops import PackedLinear

ANY = 1  # weights of an exception: as many exceptions as there are
# (rows, inputs, outputs): odd inputs, parts of a panel, groups and chunks, several blocks of rows.
SHAPES = [
    *((rows, 40, 70) for rows in range(1, 27)),
    *((rows, 97, 33) for rows in (1, 2, 12, 13, 48, 49, 97)),
    *((rows, 385, 96) for rows in (1, 11, 24, 190)),
    (3, 1, 1),
    (1, 2, 32),
    (5, 7, 31),
    (64, 577, 33),
    (200, 192, 65),
    (1, 2100, 40),
    (40, 2100, 40),
]


def patterns(outputs: int, inputs: int) -> Tensor:
    """Any 16 bits: every exponent, infinities and NaNs among them."""
    return torch.randint(-(2**15), 2**15, (outputs, inputs)).to(torch.int16).view(torch.bfloat16)


def normal(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs).bfloat16()


def spread(outputs: int, inputs: int) -> Tensor:
    """Exponents far apart, and zeros of both signs."""
    weight = torch.randn(outputs, inputs) * 2.0 ** torch.randint(-30, 30, (outputs, inputs))
    weight[::3, ::5] = 0.0
    weight[1::3, ::7] = -0.0
    return weight.bfloat16()


def tiny(outputs: int, inputs: int) -> Tensor:
    """Subnormal numbers, and those just above."""
    return (torch.randn(outputs, inputs) * 2.0**-127).bfloat16()


def one_by_one(outputs: int, inputs: int) -> Tensor:
    """A few weights that are not finite, or huge, between normal ones."""
    weight = normal(outputs, inputs)
    places = torch.randperm(weight.numel())[:4]
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, 2.0**100])
    weight.view(-1)[places] = values[: len(places)].bfloat16()
    return weight


def zeros(outputs: int, inputs: int) -> Tensor:
    return torch.zeros(outputs, inputs, dtype=torch.bfloat16)


KINDS: list[Callable[[int, int], Tensor]] = [normal, spread, tiny, one_by_one, zeros, patterns]


def both(weight: Tensor) -> tuple[PackedLinear, PackedLinear]:
    """Plain and slim."""
    size = _cpu.packed_bytes(1, *weight.shape)
    data = torch.zeros(size + 64, dtype=torch.uint8)
    data = data[-data.data_ptr() % 64 :][:size]
    _cpu.pack_linear(weight.data_ptr(), data.data_ptr(), 1, *weight.shape, weight.stride(0))
    slim = pack_slim(weight, ANY)
    assert slim is not None and slim.is_slim
    return PackedLinear(data, weight.dtype, *weight.shape), slim


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Which NaN comes of two is left to compilers."""
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    same = (a.view(integer) == b.view(integer)) | (a.isnan() & b.isnan())
    return a.dtype == b.dtype and bool(same.all())


@pytest.mark.usefixtures("product_isa", "threads")
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_plain_weights(kind: Callable[[int, int], Tensor]) -> None:
    _cpu.set_num_threads(2)
    for rows, inputs, outputs in SHAPES:
        x, bias = torch.randn(rows, inputs).bfloat16(), torch.randn(outputs)
        plain, slim = both(kind(outputs, inputs))
        for out_dtype in (torch.float32, torch.bfloat16):
            expected = cpu.linear(x, plain, bias, out_dtype)
            assert same_bits(cpu.linear(x, slim, bias, out_dtype), expected)


@pytest.mark.usefixtures("product_isa", "threads")
def test_gated_products_are_those_of_plain_weights() -> None:
    _cpu.set_num_threads(3)
    for rows, inputs, size in [(1, 100, 64), (12, 40, 32), (200, 193, 96), (5, 31, 35)]:
        x, bias = torch.randn(rows, inputs).bfloat16(), torch.randn(2 * size)
        plain, slim = both(spread(2 * size, inputs) * 2.0**-20)
        assert same_bits(cpu.gated_linear(x, slim, bias), cpu.gated_linear(x, plain, bias))


@pytest.mark.usefixtures("isa", "threads")
def test_the_largest_outputs_are_those_of_plain_weights() -> None:
    for rows, inputs, outputs in [(1, 64, 1), (3, 33, 300), (64, 64, 2003), (200, 100, 130)]:
        x, bias = torch.randn(rows, inputs).bfloat16(), torch.randn(outputs)
        plain, slim = both(normal(outputs, inputs))
        for count in (1, 3):
            _cpu.set_num_threads(count)
            expected_tokens, expected = cpu.linear_argmax(x, plain, bias)
            tokens, largest = cpu.linear_argmax(x, slim, bias)
            assert torch.equal(tokens, expected_tokens) and same_bits(largest, expected)


@pytest.mark.parametrize("unit", emulated_tiles.kinds())
@pytest.mark.parametrize("kind", KINDS)
def test_products_on_tiles_are_those_of_plain_weights(
    kind: Callable[[int, int], Tensor], unit: str
) -> None:
    with emulated_tiles.build(unit).chosen():
        for rows, inputs, outputs in [*SHAPES[::4], (33, 2100, 33), (100, 31, 40), (200, 75, 64)]:
            x = torch.randn(rows, inputs).bfloat16()
            plain, slim = both(kind(outputs, inputs))
            assert same_bits(cpu.linear(x, slim), cpu.linear(x, plain))
        x = torch.randn(40, 300).bfloat16()
        plain, slim = both(kind(128, 300))
        assert same_bits(cpu.gated_linear(x, slim), cpu.gated_linear(x, plain))


def test_the_layout_is_the_same_on_every_instruction_set() -> None:
    before, layouts = _cpu.selected_isa(), []
    weight = spread(70, 101)
    for isa in _cpu.supported_isas():
        _cpu.select_isa(isa)
        slim = pack_slim(weight, ANY)
        assert slim is not None
        layouts.append(slim.data)
    _cpu.select_isa(before)
    assert all(torch.equal(layout, layouts[0]) for layout in layouts)


def test_it_takes_12_bits_a_weight_and_a_little() -> None:
    slim = pack_slim((torch.randn(512, 512) * 0.02).bfloat16())
    assert slim is not None
    assert 1.5 * 512 * 512 <= slim.data.nbytes <= 1.51 * 512 * 512


def test_weights_that_do_not_suit_it_are_packed_plainly() -> None:
    rows = [patterns(64, 64), torch.randn(64, 64), torch.randn(64, 0).bfloat16()]
    for weight in rows:
        assert pack_slim(weight) is None
    # One exception in 128 weights is still welcome, two are not.
    weight = torch.ones(32, 128).bfloat16()
    weight[:, :1] = 2.0**-40
    assert pack_slim(weight) is not None
    weight[:, :2] = 2.0**-40
    assert pack_slim(weight) is None


def test_it_is_chosen_where_it_is_wanted_and_fast(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not cpu.pack_linear(normal(64, 64)).is_slim
    monkeypatch.setenv("VLLM_LITE_SLIM_WEIGHTS", "1")
    assert cpu.pack_linear(normal(64, 64)).is_slim == (isa not in ("avx2", "portable"))
    assert not cpu.pack_linear(patterns(64, 64)).is_slim
    assert not cpu.pack_linear(torch.randn(64, 64)).is_slim


def test_rows_of_a_weight_may_lie_apart() -> None:
    wide = normal(40, 200)
    x = torch.randn(3, 99).bfloat16()
    plain, slim = both(wide[:, 50:149])
    assert same_bits(cpu.linear(x, slim), cpu.linear(x, plain))
