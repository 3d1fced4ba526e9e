"""Linear layers by quantised weights equal the reference, independently of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as GGML

from tests.kernels.test_dequantize import KINDS, random_storage, written_blocks
from vllm_lite import _cpu
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.quantized import QuantizedRows, QuantizedWeight

QUANTIZED = [kind for kind in KINDS if kind.name not in ("F32", "F16", "BF16")]
EVERY_KIND = pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
DTYPES = [torch.float32, torch.bfloat16]


def weights(
    *parts: tuple[GGML, int], num_inputs: int
) -> tuple[QuantizedWeight, QuantizedWeight, torch.Tensor]:
    """One weight as the kernels pack it, as the reference does, and its values."""
    rows, values = [], []
    for kind, count in parts:
        blocks = random_storage(kind, count, num_inputs)
        rows.append(QuantizedRows(blocks, int(kind), num_inputs))
        shape = (count, num_inputs)
        values.append(reference.dequantize_gguf(blocks, int(kind), shape, torch.float32))
    return cpu.pack_quantized(rows), reference.pack_quantized(rows), torch.cat(values)


def awkward_rows(num_rows: int, num_inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal rows, and among them zeros, a lone outlier, huge, tiny and tied values."""
    x = torch.randn(num_rows, num_inputs)
    if num_rows > 5:
        x[1] = 0
        x[2, 5] = 1e5
        x[3] *= 1e30
        x[4] *= 1e-35
        x[5] = torch.arange(num_inputs) % 256 - 127.5
    return x.to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> None:
    """Within float32's rounding of the sums' largest term, row by row."""
    error = (actual.double() - expected.double()).abs()
    assert bool((error <= 1e-5 * scale + 1e-37).all()), f"{(error / scale).max():.2e}"


@pytest.mark.usefixtures("isa")
@EVERY_KIND
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantized_linear(kind: GGML, dtype: torch.dtype) -> None:
    for num_rows, outputs, inputs in [(1, 1, 256), (7, 70, 768), (30, 33, 512), (100, 20, 256)]:
        packed, plain, values = weights((kind, outputs), num_inputs=inputs)
        x, bias = awkward_rows(num_rows, inputs, dtype), torch.randn(outputs)
        expected = reference.quantized_linear(x, plain, None, torch.float32)
        scale = x.double().abs() @ values.double().abs().T
        actual = cpu.quantized_linear(x, packed, None, torch.float32)
        assert_close(actual, expected, scale)
        assert torch.equal(cpu.quantized_linear(x, packed, bias, torch.float32), actual + bias)
        assert torch.equal(cpu.quantized_linear(x, packed), actual.to(dtype))


@pytest.mark.usefixtures("isa")
@EVERY_KIND
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_by_blocks_of_llama_cpp(kind: GGML, dtype: torch.dtype) -> None:
    blocks, values = (part.repeat(14, 1) for part in written_blocks(kind))
    rows = [QuantizedRows(blocks, int(kind), values.shape[1])]
    packed, plain = cpu.pack_quantized(rows), reference.pack_quantized(rows)
    for num_rows in (1, 40):
        x = awkward_rows(num_rows, values.shape[1], dtype)
        expected = reference.quantized_linear(x, plain, None, torch.float32)
        scale = x.double().abs() @ values.double().abs().T
        assert_close(cpu.quantized_linear(x, packed, None, torch.float32), expected, scale)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("inputs", [32, 64, 288, 576])
@pytest.mark.parametrize("kind", [GGML.Q4_1, GGML.Q8_0, GGML.Q5_0], ids=lambda kind: kind.name)
def test_inputs_that_are_not_whole_chunks(kind: GGML, inputs: int) -> None:
    packed, plain, values = weights((kind, 40), num_inputs=inputs)
    x = awkward_rows(14, inputs, torch.float32)
    expected = reference.quantized_linear(x, plain)
    scale = x.double().abs() @ values.double().abs().T
    assert_close(cpu.quantized_linear(x, packed), expected, scale)


@pytest.mark.usefixtures("isa")
def test_parts_of_different_types_are_concatenated() -> None:
    parts: Sequence[tuple[GGML, int]] = [(GGML.Q4_K, 70), (GGML.Q6_K, 5), (GGML.Q8_0, 33)]
    packed, plain, values = weights(*parts, num_inputs=512)
    x, bias = awkward_rows(9, 512, torch.float32), torch.randn(108)
    expected = reference.quantized_linear(x, plain, bias)
    scale = x.double().abs() @ values.double().abs().T + bias.abs()
    assert_close(cpu.quantized_linear(x, packed, bias), expected, scale)


@pytest.mark.usefixtures("isa", "threads")
@EVERY_KIND
def test_a_row_alone_gives_the_same_bits_as_in_a_batch(kind: GGML) -> None:
    packed, _, _ = weights((kind, 200), num_inputs=512)
    x = torch.randn(210, 512).bfloat16()
    _cpu.set_num_threads(1)
    whole = cpu.quantized_linear(x, packed)
    _cpu.set_num_threads(3)
    assert torch.equal(cpu.quantized_linear(x, packed), whole)
    for row in (0, 1, 11, 12, 95, 96, 209):
        assert torch.equal(cpu.quantized_linear(x[row : row + 1], packed)[0], whole[row])
    assert torch.equal(cpu.quantized_linear(x[5:30], packed), whole[5:30])


@pytest.mark.usefixtures("isa")
@EVERY_KIND
def test_few_rows_give_the_same_bits_as_many(kind: GGML) -> None:
    for inputs in (256, 288, 768):
        if inputs % GGML_QUANT_SIZES[kind][0]:
            continue
        packed, _, _ = weights((kind, 70), num_inputs=inputs)
        x = awkward_rows(96, inputs, torch.float32)
        x[70] = 127 * torch.where(torch.arange(inputs) % 2 == 0, 1, -1)
        x[71] = 127
        whole = cpu.quantized_linear(x, packed)
        for count in range(1, 14):
            for first in (0, 70, 96 - count):
                few = cpu.quantized_linear(x[first : first + count], packed)
                assert torch.equal(few, whole[first : first + count])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("kind", "inputs"), [(GGML.Q4_1, 352), (GGML.Q6_K, 512)])
def test_activations_are_quantised_alike_in_every_type(kind: GGML, inputs: int) -> None:
    packed, _, _ = weights((kind, 40), num_inputs=inputs)
    x = awkward_rows(75, inputs, torch.bfloat16)
    x[70, 40], x[71, 0], x[72, -1] = torch.nan, torch.inf, -torch.inf
    for count in (1, 3, 20, 75):
        rows = x[75 - count :]
        wide = cpu.quantized_linear(rows.float(), packed).bfloat16()
        narrow = cpu.quantized_linear(rows, packed)
        torch.testing.assert_close(narrow, wide, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_affect_only_their_row(bad: float) -> None:
    packed, plain, _ = weights((GGML.Q4_1, 40), num_inputs=96)
    x = torch.randn(20, 96)
    clean = cpu.quantized_linear(x, packed)
    x[7, 50] = bad
    spoilt = cpu.quantized_linear(x, packed)
    assert spoilt[7].isnan().all()
    assert reference.quantized_linear(x, plain)[7].isnan().all()
    others = [i for i in range(20) if i != 7]
    assert torch.equal(spoilt[others], clean[others])


@pytest.mark.usefixtures("isa")
@EVERY_KIND
@pytest.mark.parametrize("dtype", DTYPES)
def test_look_ups_are_exact(kind: GGML, dtype: torch.dtype) -> None:
    packed, plain, values = weights((kind, 70), num_inputs=768)
    ids = torch.tensor([69, 0, 31, 32, 31, 5])
    rows = cpu.quantized_lookup(packed, ids, dtype)
    assert torch.equal(rows, values[ids].to(dtype))
    assert torch.equal(rows, reference.quantized_lookup(plain, ids, dtype))
    for beyond in (-1, 70):
        with pytest.raises(IndexError, match="outside the table of 70 rows"):
            cpu.quantized_lookup(packed, torch.tensor([0, beyond]), dtype)
    of_part = cpu.quantized_lookup(packed, torch.tensor([39, 40, 109, 110]), dtype, 40)
    zeros = torch.zeros(768)
    assert torch.equal(of_part, torch.stack([zeros, values[0], values[69], zeros]).to(dtype))


@EVERY_KIND
def test_the_packed_layout_is_the_same_on_every_isa(kind: GGML) -> None:
    rows = QuantizedRows(random_storage(kind, 40, 512), int(kind), 512)
    before, layouts = _cpu.selected_isa(), []
    for isa in _cpu.supported_isas():
        _cpu.select_isa(isa)
        layouts.append(cpu.pack_quantized([rows]).parts[0].data)
    _cpu.select_isa(before)
    assert all(torch.equal(layout, layouts[0]) for layout in layouts)
    # Two panels of 32 outputs, at most 4 % larger than in the file; signs and scales of books are
    # whole bytes.
    larger = 1.13 if kind.name.startswith("IQ") else 1.04
    assert layouts[0].numel() <= rows.blocks.numel() / 40 * 64 * larger


def test_empty_batches_strides_and_what_does_not_fit() -> None:
    packed, plain, _ = weights((GGML.Q8_0, 40), num_inputs=64)
    assert cpu.quantized_linear(torch.empty(0, 64), packed).shape == (0, 40)
    view = torch.randn(6, 100)[:, 20:84]
    expected = reference.quantized_linear(view, plain)
    torch.testing.assert_close(cpu.quantized_linear(view, packed), expected, rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match="quantized_linear"):
        cpu.quantized_linear(torch.randn(2, 96), packed)
    with pytest.raises(ValueError, match="bias"):
        cpu.quantized_linear(torch.randn(2, 64), packed, torch.randn(7))
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        cpu.quantized_linear(torch.randn(2, 64).half(), packed)


def test_damaged_and_unknown_rows_are_refused() -> None:
    for kind, size, message in [
        (8, 67, "the file is damaged"),
        (15, 292, "type 15 is not supported"),
        (12, 36, "cannot be packed"),
    ]:
        rows = QuantizedRows(torch.zeros(4, size, dtype=torch.uint8), kind, 64)
        with pytest.raises(CheckpointError, match=message):
            cpu.pack_quantized([rows])
