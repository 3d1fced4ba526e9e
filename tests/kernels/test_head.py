"""An output head's kernels: largest outputs alone, and results in given memory."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType as GGML

from tests.kernels.test_quantized import awkward_rows, weights
from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.mapped_memory import KeptRows

DTYPES = [torch.float32, torch.bfloat16]
# (rows, inputs, outputs): parts of a panel, of a strip of four panels, several blocks of rows.
SHAPES = [(1, 64, 1), (3, 33, 31), (12, 64, 130), (64, 64, 5003), (200, 32, 500), (0, 16, 40)]
INF, NAN = float("inf"), float("nan")


def assert_those_of(found: tuple[torch.Tensor, torch.Tensor], outputs: torch.Tensor) -> None:
    """Check tokens, and largest outputs bit by bit, against all outputs."""
    tokens, largest = found
    expected_tokens, expected_largest = cpu.greedy_tokens(outputs)
    assert tokens.tolist() == expected_tokens.tolist()
    assert torch.equal(largest.view(torch.int32), expected_largest.view(torch.int32))


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_outputs_equal_the_full_linear(dtype: torch.dtype) -> None:
    for rows, inputs, outputs in SHAPES:
        x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        packed = cpu.pack_linear(weight)
        for bias in (None, torch.randn(outputs)):
            whole = cpu.linear(x, packed, bias, torch.float32)
            for count in (1, 3):
                _cpu.set_num_threads(count)
                assert_those_of(cpu.linear_argmax(x, packed, bias), whole)


@pytest.mark.usefixtures("isa", "threads")
def test_largest_outputs_equal_the_full_quantised_linear() -> None:
    for rows in (1, 13, 130):
        packed, _, _ = weights((GGML.Q4_1, 300), (GGML.Q8_0, 41), (GGML.Q6_K, 7), num_inputs=256)
        x, bias = awkward_rows(rows, 256, torch.bfloat16), torch.randn(348)
        for given in (None, bias):
            whole = cpu.quantized_linear(x, packed, given, torch.float32)
            assert_those_of(cpu.quantized_linear_argmax(x, packed, given), whole)


@pytest.mark.usefixtures("isa", "threads")
def test_ties_go_to_the_first_output() -> None:
    _cpu.set_num_threads(2)
    weight = torch.randn(10, 16).repeat(800, 1)
    x = torch.randn(50, 16)
    tokens, _ = cpu.linear_argmax(x, cpu.pack_linear(weight))
    assert int(tokens.max()) < 10


@pytest.mark.usefixtures("isa")
def test_a_non_finite_row_is_reported_and_affects_no_other() -> None:
    x = torch.randn(5, 8)
    # The outputs of rows 1 to 3 have a NaN, plus and minus infinity.
    bias = torch.zeros(1000)
    x[1, 0], x[2, 0], x[3, 0] = NAN, INF, -INF
    weight = torch.rand(1000, 8) + 0.1
    tokens, largest = cpu.linear_argmax(x, cpu.pack_linear(weight), bias)
    assert largest.isfinite().tolist() == [True, False, False, False, True]
    assert tokens[1:4].tolist() == [0, 0, 0]
    bias[700] = NAN
    _, largest = cpu.linear_argmax(x[:1], cpu.pack_linear(weight), bias)
    assert not bool(largest.isfinite())


@pytest.mark.usefixtures("isa")
def test_results_are_written_to_given_memory() -> None:
    x, weight = torch.randn(7, 64), torch.randn(70, 64)
    packed, memory = cpu.pack_linear(weight), torch.full((9, 80), 5.0)
    out = memory[:7, :70]
    assert cpu.linear(x, packed, None, torch.float32, out) is out
    assert torch.equal(out, cpu.linear(x, packed))
    assert bool((memory[7:] == 5).all()) and bool((memory[:, 70:] == 5).all())
    quantised, _, _ = weights((GGML.Q8_0, 70), num_inputs=64)
    assert cpu.quantized_linear(x, quantised, None, torch.float32, out) is out
    assert torch.equal(out, cpu.quantized_linear(x, quantised))


def test_what_does_not_fit_is_refused() -> None:
    packed = cpu.pack_linear(torch.randn(70, 64))
    x = torch.randn(7, 64)
    with pytest.raises(ValueError, match="out must be"):
        cpu.linear(x, packed, None, torch.float32, torch.empty(7, 69))
    with pytest.raises(ValueError, match="out must be"):
        cpu.linear(x, packed, None, torch.float32, torch.empty(7, 70, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="does not fit"):
        cpu.linear_argmax(torch.randn(7, 63), packed)
    with pytest.raises(ValueError, match="does not fit"):
        cpu.linear_argmax(x.bfloat16(), packed)
    with pytest.raises(ValueError, match="bias"):
        cpu.linear_argmax(x, packed, torch.zeros(69))


def test_kept_rows_are_reused_until_there_are_more() -> None:
    kept = KeptRows(100)
    first = kept.rows(3)
    first.fill_(1)
    assert first.shape == (3, 100)
    assert kept.rows(4).data_ptr() == first.data_ptr() == kept.rows(1).data_ptr()
    assert kept.rows(5).shape == (5, 100)
    assert kept.rows(0).shape == (0, 100)
