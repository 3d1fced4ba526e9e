"""Products and look-ups by grouped weights on a CPU: exact values, and no row depends on others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops
from vllm_lite.kernels.cpu.program import StepInput, record_step
from vllm_lite.kernels.grouped_weight import GroupedWeight, expand, make_grouped
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.rounding import ActivationRounding, round_activations
from vllm_lite.quantization.layouts import numbers

pytestmark = pytest.mark.usefixtures("isa")

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
SHIFTED = ActivationRounding(torch.int8, is_shifted=True)
E5M2 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float()


def weight(
    bits: int,
    outputs: int,
    inputs: int,
    size: int,
    scales: torch.dtype = torch.float32,
    table: torch.Tensor | None = None,
    **planes: Any,
) -> GroupedWeight:
    codes = torch.randint(2**bits, (outputs, inputs), dtype=torch.uint8)
    if table is E4M3:
        codes[(codes & 127) == 127] = 0
    if table is E5M2:
        codes[(codes & 127) > 123] = 0
    groups = -(-inputs // size)
    factors = (torch.rand(outputs, groups) + 0.5).to(scales)
    return make_grouped(
        codes,
        factors,
        bits,
        0 if table is not None else 2 ** (bits - 1),
        table=table,
        group_size=size,
        **planes,
    )


def cases() -> dict[str, Any]:
    made: dict[str, Any] = {
        f"{bits} bits": lambda bits=bits: weight(bits, 75, 160, 32, torch.float16)
        for bits in (2, 3, 4, 5, 6, 8)
    }
    for bits in (2, 3, 4, 5, 6, 8):
        made[f"table of {bits} bits"] = lambda bits=bits: weight(
            bits, 33, 96, 16, torch.bfloat16, torch.randn(2**bits)
        )
    # Numbers that are made rather than looked up, and some that nearly are such.
    tables = {
        "integers of 2 bits": torch.arange(4) - 1.0,
        "integers of 4 bits": torch.arange(16.0),
        "integers of 5 bits": torch.arange(32) - 3.0,
        "integers of 6 bits": torch.arange(64.0),
        "halves of integers": torch.tensor([-64.0, 63.5, *torch.randint(-128, 128, (14,)) / 2]),
        "thirds of integers": torch.randint(-128, 128, (16,)) / 3,
        **{name: numbers.values_of(name) for name in ("float4_e2m1", "float6_e2m3", "float6_e3m2")},
        "one number apart": numbers.values_of("float6_e3m2") + (torch.arange(64) == 40),
    }
    for name, table in tables.items():
        bits = len(table).bit_length() - 1
        for size in (16, 64):
            made[f"{name}, groups of {size}"] = partial(
                weight, bits, 75, 192, size, torch.float16, table
            )
    made["e4m3"] = lambda: weight(8, 64, 200, 200, table=E4M3)
    made["e4m3 blocks"] = lambda: weight(8, 64, 320, 128, table=E4M3)
    made["e5m2"] = lambda: weight(8, 5, 64, 64, table=E5M2)
    made["zeros"] = lambda: weight(
        4, 40, 256, 64, torch.float16, zeros=torch.randint(16, (40, 4), dtype=torch.uint8)
    )
    made["zeros of bytes"] = lambda: weight(
        8, 40, 256, 64, torch.float16, zeros=torch.randint(256, (40, 4), dtype=torch.uint8)
    )
    made["fractional zeros"] = lambda: weight(4, 40, 256, 64, zeros=torch.randn(40, 4))
    made["minimums"] = lambda: weight(4, 40, 144, 48, minimums=torch.randn(40, 3))
    made["nvfp4"] = lambda: weight(
        4, 70, 112, 16, torch.float8_e4m3fn, torch.randn(16), super_scales=torch.rand(70, 1)
    )
    made["mxfp4"] = lambda: weight(4, 70, 96, 32, torch.float8_e8m0fnu, torch.randn(16))
    made["a short last group"] = lambda: weight(4, 70, 104, 64, torch.bfloat16, torch.randn(16))
    made["one group of odd size"] = lambda: weight(8, 9, 101, 101)
    made["permuted"] = lambda: weight(4, 32, 64, 32, permutation=torch.randperm(64))
    return made


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_equal_those_of_the_expanded_weight(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    grouped = cases()[name]()
    packed = ops.pack_grouped(grouped)
    values = expand(grouped).double()
    x = torch.randn(70, grouped.num_inputs + 2).to(dtype)[:, : grouped.num_inputs]
    bias = torch.randn(grouped.num_outputs)
    whole = ops.grouped_linear(x, packed, bias, torch.float32)
    expected = x.double() @ values.T + bias
    # Tiles take a table's numbers in bfloat16.
    is_brief = _cpu.selected_isa() in ("amx", "avx512_bf16") and dtype is torch.bfloat16
    is_rounded = is_brief and grouped.table is not None
    bound = x.double().abs() @ values.abs().T * (2.0**-9 if is_rounded else 1e-6) + 1e-5
    assert ((whole.double() - expected).abs() <= bound).all()
    for count in (1, 2, 3, 4, 5, 13):
        part = ops.grouped_linear(x[7 : 7 + count], packed, bias, torch.float32)
        assert torch.equal(part, whole[7 : 7 + count])


@pytest.mark.parametrize("name", cases())
def test_look_ups(name: str) -> None:
    torch.manual_seed(2)
    grouped = cases()[name]()
    packed, values = ops.pack_grouped(grouped), expand(grouped)
    ids = torch.tensor([0, grouped.num_outputs - 1, 3, 0])
    looked = ops.grouped_lookup(packed, ids, torch.float32)
    if name == "fractional zeros":
        torch.testing.assert_close(looked, values[ids])
    else:
        assert torch.equal(looked, values[ids])
    elsewhere = ops.grouped_lookup(packed, ids + 100, torch.bfloat16, 100)
    assert torch.equal(elsewhere, looked.bfloat16())
    assert not ops.grouped_lookup(packed, ids, torch.float32, 1000).any()
    with pytest.raises(IndexError, match="outside the table"):
        ops.grouped_lookup(packed, torch.tensor([grouped.num_outputs]), torch.float32)


def test_a_packed_weight_takes_as_much_memory_as_its_codes_and_scales() -> None:
    for bits in (2, 3, 4, 5, 6, 8):
        grouped = weight(bits, 256, 512, 128, torch.float16)
        assert ops.pack_grouped(grouped).nbytes <= 1.05 * (256 * 512 * bits // 8 + 256 * 4 * 2)


def test_numbers_that_are_none_stay() -> None:
    codes = torch.full((3, 32), 127, dtype=torch.uint8)
    packed = ops.pack_grouped(make_grouped(codes, torch.ones(3, 1), 8, table=E4M3))
    assert ops.grouped_linear(torch.ones(2, 32), packed).isnan().all()


@pytest.mark.parametrize("number", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_activations_equal_the_reference(
    bits: int, number: torch.dtype, dtype: torch.dtype
) -> None:
    x = torch.randn(9, 160).to(dtype)
    x[3] = 0
    x[4, 100] = torch.nan
    x[5, 7] = torch.inf
    middle = 2 ** (bits - 1)
    codes = torch.eye(160, dtype=torch.uint8) + middle
    by_powers = (
        (ActivationRounding(number, 32, scales="e8m0"), 32),
        (ActivationRounding(number, 32, scales="ue8m0"), 32),
    )
    for rounding, group_size in (
        (ActivationRounding(number), 160),
        (ActivationRounding(number), 16),
        (ActivationRounding(number, 32), 32),
        (ActivationRounding(number, 128), 64),
        (ActivationRounding(number, 48), 16),
        (ActivationRounding(number, scale=torch.tensor([0.01])), 160),
        *(((SHIFTED, 160), (SHIFTED, 32)) if number is torch.int8 else by_powers),
    ):
        scales = torch.ones(160, -(-160 // group_size))
        same = make_grouped(codes, scales, bits, middle, group_size=group_size)
        ours, theirs = (
            each.grouped_linear(x, each.pack_grouped(same), None, torch.float32, None, rounding)
            for each in (ops, reference)
        )
        if number is torch.int8 and rounding.scale is not None:  # NaN has no code
            ours, theirs = (torch.cat([t[:4], t[5:]]) for t in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def values_of(number: str) -> torch.Tensor:
    """Those >= 0 of a small float, or of an integer of four bits."""
    if number == "int4":
        return torch.arange(8.0)
    exponents, mantissas = {"e2m1": (2, 2), "e2m3": (2, 8), "e3m2": (3, 4)}[number]
    lowest = torch.arange(float(mantissas)) / mantissas
    normal = [(1 + lowest) * 2.0**exponent for exponent in range(2**exponents - 1)]
    return torch.cat([lowest, *normal])


INT8, FP8 = torch.int8, torch.float8_e4m3fn
FP4, TENTH = values_of("e2m1"), torch.tensor([0.1])
ROUNDINGS = {
    "mxfp4": ActivationRounding(FP8, 32, values=FP4, scales="e8m0"),
    "mxfp4 by powers above": ActivationRounding(FP8, 32, values=FP4, scales="ue8m0"),
    "mxfp4 by spread": ActivationRounding(FP8, 32, values=FP4, scales="spread"),
    "mxfp6": ActivationRounding(FP8, 32, values=values_of("e3m2"), scales="e8m0"),
    "mxfp6 of short range": ActivationRounding(FP8, 32, values=values_of("e2m3"), scales="e8m0"),
    "mxfp8": ActivationRounding(FP8, 32, scales="e8m0"),
    "mxfp8 of wide range": ActivationRounding(torch.float8_e5m2, 32, scales="e8m0"),
    "nvfp4": ActivationRounding(FP8, 16, TENTH, FP4, scales="float8_e4m3fn"),
    "nvfp4 with one scale": ActivationRounding(FP8, 16, None, FP4, scales="float8_e4m3fn"),
    "fp8 with nested scales": ActivationRounding(FP8, 16, TENTH, scales="float8_e4m3fn"),
    "fp4 groups": ActivationRounding(FP8, 48, values=FP4),
    "int4 groups": ActivationRounding(FP8, 24, values=values_of("int4")),
    "int4 tokens": ActivationRounding(FP8, 104, values=values_of("int4")),
    "fp8 groups": ActivationRounding(FP8, 24),
    "fp8 groups by powers": ActivationRounding(FP8, 24, scales="ue8m0"),
    "fp8 bounded": ActivationRounding(FP8, largest=0.3),
    "fp8 groups bounded": ActivationRounding(FP8, 48, largest=0.3),
    "int8": ActivationRounding(INT8),
    "int8 groups": ActivationRounding(INT8, 32),
    "int8 bounded": ActivationRounding(INT8, largest=0.3),
    "int8 groups, shifted": ActivationRounding(INT8, 32, is_shifted=True),
    "int8 odd groups, shifted": ActivationRounding(INT8, 24, is_shifted=True, largest=0.3),
    "int8 shifted and bounded": ActivationRounding(INT8, is_shifted=True, largest=0.3),
    "fp8 static and bounded": ActivationRounding(FP8, scale=TENTH, largest=0.3),
}


@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_at_the_ends_are_rounded_as_by_the_reference(
    name: str, dtype: torch.dtype, bits: int
) -> None:
    x = torch.randn(12, 104)
    x[0] = torch.arange(-52, 52) / 8  # ties
    x[1, 32:] = 0
    x[2, 40] = torch.nan
    x[3, 40], x[3, 103] = torch.inf, -torch.inf
    x[4] *= 1e-40
    x[5] *= 1e-31
    x[6] *= 1e-30
    x[7] = torch.linspace(-3.3e38, 3.3e38, 104)
    x[8] *= 2.0 ** torch.arange(-52, 52)
    x, rounding = x.to(dtype), ROUNDINGS[name]
    codes, order = torch.eye(104, dtype=torch.uint8) + 2 ** (bits - 1), torch.randperm(104)
    for size, permutation in ((104, None), (32, None), (16, None), (24, None), (32, order)):
        scales = torch.ones(104, -(-104 // size))
        middle = 2 ** (bits - 1)
        same = make_grouped(codes, scales, bits, middle, group_size=size, permutation=permutation)
        padded = torch.nn.functional.pad(x, (0, same.row_size - 104))
        packed = ops.pack_grouped(same)
        ours = ops.grouped_linear(padded, packed, None, torch.float32, None, rounding)
        theirs = reference.grouped_linear(x, same, None, torch.float32, None, rounding)
        # Products of bfloat16 have no subnormal numbers.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2.0**-126, equal_nan=True)
        alone = ops.grouped_linear(padded[8:9], packed, None, torch.float32, None, rounding)
        assert torch.equal(alone, ours[8:9])


@pytest.mark.parametrize("name", ["4 bits", "8 bits", "zeros of bytes", "e4m3 blocks"])
@pytest.mark.parametrize("number", [torch.int8, torch.float8_e4m3fn])
def test_rounded_rows_depend_on_no_others(name: str, number: torch.dtype) -> None:
    grouped = cases()[name]()
    packed, rounding = ops.pack_grouped(grouped), ActivationRounding(number)
    x = torch.randn(70, grouped.num_inputs)
    whole = ops.grouped_linear(x, packed, None, torch.float32, None, rounding)
    # In double: by bytes less zeros sums are some thousands, and float32's would differ by machine.
    expected = round_activations(x, rounding).double() @ expand(grouped).double().T
    torch.testing.assert_close(whole.double(), expected, rtol=1e-4, atol=1e-3)
    for count in (1, 2, 3, 4, 5, 13):
        part = ops.grouped_linear(x[7 : 7 + count], packed, None, torch.float32, None, rounding)
        assert torch.equal(part, whole[7 : 7 + count])


@pytest.mark.parametrize("inputs", [16, 200, 2048, 4128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rounding",
    [
        ActivationRounding(torch.int8),
        ActivationRounding(torch.int8, scale=torch.tensor([0.02])),
        SHIFTED,
        ActivationRounding(
            torch.int8, scale=torch.tensor([0.02]), is_shifted=True, zero=torch.tensor([-90.0])
        ),
    ],
    ids=["even", "even, static", "shifted", "shifted, static"],
)
def test_int8_by_int8_is_the_same_whatever_the_rows(
    inputs: int, dtype: torch.dtype, rounding: ActivationRounding
) -> None:
    grouped, bias = weight(8, 75, inputs, inputs), torch.randn(75)
    packed = ops.pack_grouped(grouped)
    x = torch.randn(211, inputs).to(dtype)
    x[5] *= 1e4
    x[6:9] = x[6:9].abs()
    whole = ops.grouped_linear(x, packed, bias, dtype, None, rounding)
    expected = reference.grouped_linear(x, grouped, bias, torch.float32, None, rounding)
    near = 1e-5 if dtype is torch.float32 else 1e-2
    largest = float(expected.abs().amax())
    torch.testing.assert_close(whole.float(), expected, rtol=near, atol=1e-6 * largest)
    for count in (*range(1, 14), 95, 97):
        part = ops.grouped_linear(x[3 : 3 + count], packed, bias, dtype, None, rounding)
        assert torch.equal(part, whole[3 : 3 + count])


@pytest.mark.parametrize("name", ["int8", "mxfp4", "nvfp4", "int8 shifted and bounded"])
def test_products_are_recorded(name: str) -> None:
    table = ops.pack_grouped(weight(8, 50, 64, 64))
    product, rounding = ops.pack_grouped(weight(4, 40, 64, 32)), ROUNDINGS[name]

    def forward(step: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = ops.grouped_lookup(table, step["ids"], torch.bfloat16)
        return ops.grouped_linear(x, product, None, torch.float32, None, rounding)

    inputs = {"ids": StepInput(torch.int64, ("T",))}
    recorded = record_step(forward, {"ids": torch.arange(3)}, 20, inputs)
    step = {"ids": torch.randint(50, (17,))}
    assert torch.equal(recorded.run(step), forward(step))
