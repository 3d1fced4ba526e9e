"""Operations of encoders: equal to their reference, and a request's bits are its own."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.test_fusion import step_of
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.program import StepTensors, record_step
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 1.6e-2}
LENS = [3, 1, 64, 65, 200, 0, 700, 17]


class Heads(NamedTuple):
    """Operands of encoder_attention, parts of one projection."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_start_loc: Tensor


def starts(lens: list[int]) -> Tensor:
    return F.pad(torch.tensor(lens).cumsum(0), (1, 0)).int()


def heads(
    lens: list[int],
    counts: tuple[int, int] = (3, 3),
    sizes: tuple[int, int] = (32, 32),
    dtype: torch.dtype = torch.float32,
) -> Heads:
    (num_heads, num_kv_heads), (size, value_size) = counts, sizes
    widths = [num_heads * size, num_kv_heads * size, num_kv_heads * value_size]
    parts = torch.randn(sum(lens), sum(widths)).to(dtype).split_with_sizes(widths, 1)
    query, key = (part.unflatten(1, (-1, size)) for part in parts[:2])
    return Heads(query, key, parts[2].unflatten(1, (-1, value_size)), starts(lens))


def test_the_reference_is_torchs_attention() -> None:
    case = heads([5, 9], counts=(4, 2), sizes=(8, 8))
    out = reference.encoder_attention(*case, 0.3)
    for start, end in pairwise(case.query_start_loc.tolist()):
        parts = [part[start:end].transpose(0, 1) for part in case[:3]]
        want = F.scaled_dot_product_attention(*parts, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(out[start:end], want.transpose(0, 1))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ((3, 3), (32, 32)),
        ((2, 2), (64, 64)),
        ((4, 2), (96, 96)),
        ((8, 1), (128, 128)),
        ((3, 1), (20, 20)),
        ((2, 2), (7, 33)),
    ],
)
def test_attention(counts: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype) -> None:
    case, tolerance = heads(LENS, counts, sizes, dtype), TOLERANCE[dtype]
    slopes = {"alibi_slopes": torch.rand(counts[0]) / 4}
    terms = {"distance_terms": torch.randn(counts[0], 2 * max(LENS) - 1)}
    for window, cap, own in (
        *((0, 0.0, {}), (1, 0.0, {}), (70, 20.0, {})),
        *((64, 0.0, slopes), (0, 0.0, terms), (64, 20.0, terms)),
    ):
        ours, theirs = (
            ops.encoder_attention(*case, sizes[0] ** -0.5, window, cap, **own)
            for ops in (cpu, reference)
        )
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance / 2)


def test_no_request_is_longer_than_the_distances_with_terms() -> None:
    case = heads([3, 9], (2, 2), (16, 16))
    for length in (9, 8):
        terms = torch.zeros(2, 2 * length - 1)
        with pytest.raises(IndexError) if length < 9 else nullcontext():
            cpu.encoder_attention(*case, 0.2, distance_terms=terms)


def test_operations_can_be_recorded() -> None:
    tables = [torch.randn(count, 96) for count in (100, 100)]

    def forward(step: StepTensors) -> Tensor:
        hidden = cpu.encoder_embedding(step["input_ids"], step["positions"], *tables)
        query, key, value = hidden.view(-1, 3, 32).split_with_sizes([1, 1, 1], 1)
        return cpu.encoder_attention(query, key, value, step["query_start_loc"], 0.2).view(-1, 32)

    with torch.inference_mode():
        program = record_step(forward, step_of(3), 100)
        for step in (step_of(40, 3), step_of(1)):
            assert torch.equal(program.run(step), forward(step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tritons_attention(dtype: torch.dtype) -> None:
    triton = pytest.importorskip("vllm_lite.kernels.gpu.triton.ops")
    slopes, tolerance = torch.rand(4) / 4, 4e-3 if dtype is torch.float16 else 3e-5
    both = {"alibi_slopes": slopes, "distance_terms": torch.randn(4, 301)}
    for sizes in ((32, 32), (20, 33)):
        case = heads([3, 1, 0, 150, 17], (4, 2), sizes, dtype)
        for window, cap, own in ((0, 0.0, {}), (1, 0.0, {}), (40, 5.0, both)):
            ours, theirs = (
                ops.encoder_attention(*case, 0.2, window, cap, **own) for ops in (triton, reference)
            )
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance / 2)
        alone = [part[4:154] for part in case[:3]]
        whole = triton.encoder_attention(*case, 0.2)
        assert torch.equal(triton.encoder_attention(*alone, starts([150]), 0.2), whole[4:154])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_has_the_same_bits_alone_and_in_a_batch(dtype: torch.dtype) -> None:
    lens = [*LENS, 1500]
    case = heads(lens, dtype=dtype)
    terms = torch.randn(case.query.shape[1], 2 * max(lens) - 1)
    for window, own in ((0, {}), (40, {}), (0, {"distance_terms": terms})):
        together = cpu.encoder_attention(*case, 0.2, window, **own)
        for start, end in pairwise(case.query_start_loc.tolist()):
            rows = [part[start:end] for part in case[:3]]
            alone = cpu.encoder_attention(*rows, starts([end - start]), 0.2, window, **own)
            assert torch.equal(alone, together[start:end])


def test_tokens_of_no_request_become_zero() -> None:
    case = heads([5, 4])
    out = cpu.encoder_attention(*case[:3], torch.tensor([0, 5], dtype=torch.int32), 0.2)
    assert not out[5:].any() and out[:5].any()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [384, 20])
def test_embedding(size: int, dtype: torch.dtype) -> None:
    words, places, types = (torch.randn(count, size).to(dtype) for count in (50, 30, 2))
    weight, bias = torch.randn(2, size).to(dtype)
    ids, positions = torch.randint(100, (40,)), torch.randint(30, (40,))
    tolerance = TOLERANCE[dtype]
    for given in (
        (ids, positions, words, places, types, weight, bias),
        (ids, positions, words, None, types, weight),
        (ids % 50, positions, words, places),
        (ids % 50, positions, words),
    ):
        ours, theirs = (ops.encoder_embedding(*given, eps=1e-5) for ops in (cpu, reference))
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        alone = cpu.encoder_embedding(ids[7:8] % 50, positions[7:8], *given[2:])
        assert torch.equal(alone, cpu.encoder_embedding(ids % 50, positions, *given[2:])[7:8])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_tritons_embedding_and_sums(dtype: torch.dtype) -> None:
    triton = pytest.importorskip("vllm_lite.kernels.gpu.triton.ops")
    words, places, types = (torch.randn(count, 90).to(dtype) for count in (50, 30, 2))
    weight, bias = torch.randn(2, 90).to(dtype)
    ids, positions = torch.randint(50, (9,)), torch.randint(30, (9,))
    tolerance = TOLERANCE.get(dtype, 4e-3)
    for given in (
        (ids + 50, positions, words, places, types, weight, bias),
        (ids, positions, words, None, types, weight),
        (ids, positions, words),
    ):
        ours, theirs = (ops.encoder_embedding(*given) for ops in (triton, reference))
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    lens, x = [5, 0, 1, 60], torch.randn(66, 300).to(dtype)
    ours, theirs = (
        ops.segment_sum(x, starts(lens), torch.zeros(4, 300)) for ops in (triton, reference)
    )
    assert torch.equal(ours, theirs)


def test_rows_that_a_table_lacks_are_refused() -> None:
    words, places, types = torch.randn(50, 8), torch.randn(30, 8), torch.randn(2, 8)
    for word, position, tables in (
        (100, 0, (places, types)),
        (-1, 0, (places, types)),
        (50, 0, (places, None)),
        (-1, 0, (places, None)),
        (3, 30, (places, types)),
        (3, -1, (places, types)),
    ):
        for ops in (cpu, reference):
            with pytest.raises(IndexError):
                ops.encoder_embedding(
                    torch.tensor([word]), torch.tensor([position]), words, *tables
                )


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_segments_have_the_same_bits_in_parts(dtype: torch.dtype) -> None:
    lens = [5, 0, 1, 90]
    x = torch.randn(sum(lens), 100)[:, :77].to(dtype)
    sums = cpu.segment_sum(x, starts(lens), torch.zeros(4, 77))
    assert torch.equal(sums, reference.segment_sum(x, starts(lens), torch.zeros(4, 77)))
    part = torch.zeros(1, 77)
    for rows in x[6:].split(13):
        cpu.segment_sum(rows, starts([len(rows)]), part)
    assert torch.equal(part[0], sums[3])
