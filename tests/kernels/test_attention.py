"""Paged attention equals the reference, and no scheduling decision changes its result by a bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference import cache as cached_rows
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]
# Types of one byte: without a scale for each row, and with one.
NARROW = {
    "e4m3": (torch.float8_e4m3fn, 0),
    "e5m2": (torch.float8_e5m2, 0),
    "scaled e4m3": (torch.float8_e4m3fn, cached_rows.SCALE_BYTES),
    "scaled int8": (torch.int8, cached_rows.SCALE_BYTES),
}


@dataclass(frozen=True)
class Batch:
    """Requests with random context in a shuffled cache; `lens` are (queries, context) pairs."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    sliding_window: int = 0
    is_chunked: bool = False
    soft_cap: float = 0.0

    def attend(self, ops: object = cpu) -> Tensor:
        # Only the implementations for any machine have chunks.
        chunked = {"is_chunked": True} if self.is_chunked else {}
        return ops.paged_attention(  # type: ignore[attr-defined, no-any-return]
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_table,
            self.query_start_loc,
            self.seq_lens,
            self.query.shape[-1] ** -0.5,
            self.sliding_window,
            self.soft_cap,
            **chunked,
        )

    def check(self) -> None:
        actual, expected = self.attend(), self.attend(reference)
        tolerance = 3e-5 if expected.dtype == torch.float32 else 1.6e-2
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance / 2)


def batch(
    lens: list[tuple[int, int]],
    heads: tuple[int, int] = (9, 3),
    size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    narrow: str | None = None,
) -> Batch:
    num_heads, num_kv_heads = heads
    counts = [math.ceil(seq_len / block_size) for _, seq_len in lens]
    # Column beyond a request's blocks keep the null block, as the worker leaves them.
    block_table = torch.zeros(len(lens), max(counts) + 2, dtype=torch.int32)
    free = torch.randperm(sum(counts)).int() + 1
    for row, ids in zip(block_table, free.split(counts), strict=True):
        row[: len(ids)] = ids
    shape = (sum(counts) + 1, num_kv_heads, block_size, size)
    caches = torch.randn(2, *shape)
    if narrow is None:
        caches = caches.to(cache_dtype or dtype)
    else:
        kind, scale_bytes = NARROW[narrow]
        example = torch.empty(0, size + scale_bytes, dtype=kind)
        # Rows of very different sizes show whether each is read with its own scale.
        sizes = torch.rand(2, *shape[:3], 1) + 0.25 if scale_bytes else 1.0
        caches = cached_rows.encode(caches * sizes, example)
    starts = torch.tensor([0] + [queries for queries, _ in lens]).cumsum(0).int()
    num_tokens = int(starts[-1])
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * size).to(dtype)
    return Batch(
        qkv[:, : num_heads * size].view(num_tokens, num_heads, size),
        caches[0],
        caches[1],
        block_table,
        starts,
        torch.tensor([seq_len for _, seq_len in lens], dtype=torch.int32),
    )


MIXED = [(1, 1), (1, 16), (5, 5), (1, 333), (40, 41), (17, 130), (1, 64), (3, 1100)]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 40, 64, 80, 96, 128, 256])
def test_head_sizes_and_types(dtype: torch.dtype, cache_dtype: torch.dtype, size: int) -> None:
    batch(MIXED, size=size, dtype=dtype, cache_dtype=cache_dtype).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("size", [1, 7, 40, 64, 96, 128, 256])
def test_8_bit_caches(dtype: torch.dtype, narrow: str, size: int) -> None:
    batch(MIXED, size=size, dtype=dtype, narrow=narrow).check()
    case = batch([(1, 130), (70, 140)], (4, 2), size, 24, dtype=dtype, narrow=narrow)
    replace(case, sliding_window=67, soft_cap=5.0).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 33])
def test_odd_head_sizes(dtype: torch.dtype, size: int) -> None:
    batch([(3, 70), (1, 5)], size=size, dtype=dtype).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 8), (32, 4), (7, 1), (64, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_groups(heads: tuple[int, int], dtype: torch.dtype) -> None:
    batch([(1, 200), (20, 90)], heads=heads, dtype=dtype).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("block_size", [8, 16, 24, 32, 64, 128])
def test_block_sizes_with_blocks_empty_partial_and_full(block_size: int) -> None:
    edges = [block_size - 1, block_size, block_size + 1, 4 * block_size, 4 * block_size + 3]
    batch([(1, n) for n in edges] + [(7, n) for n in edges], block_size=block_size).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 5000])
def test_sliding_window_edges(dtype: torch.dtype, window: int) -> None:
    lens = [(1, 1), (1, 64), (1, 65), (1, 1100), (90, 90), (70, 600)]
    case = replace(batch(lens, heads=(4, 2), size=32, dtype=dtype), sliding_window=window)
    case.check()
    replace(case, is_chunked=True).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_cap(dtype: torch.dtype) -> None:
    case = batch(MIXED, dtype=dtype)
    replace(case, query=case.query * 20, soft_cap=30.0).check()


@pytest.mark.usefixtures("isa")
def test_large_scores_neither_overflow_nor_vanish() -> None:
    case = batch([(1, 700), (30, 30)])
    replace(case, query=case.query * 1000).check()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_context(dtype: torch.dtype) -> None:
    batch([(2, 20_000), (64, 5_000)], heads=(4, 2), dtype=dtype).check()


@pytest.mark.usefixtures("isa")
def test_tokens_of_no_request_become_zero() -> None:
    case = batch([(2, 9), (0, 20), (1, 3)])
    padded = replace(case, query=torch.cat([case.query, case.query]))
    assert torch.equal(padded.attend()[:3], case.attend())
    assert not padded.attend()[3:].any()


@pytest.mark.usefixtures("isa")
def test_nan_stays_within_its_request() -> None:
    case = batch([(1, 40), (1, 40)])
    case.key_cache[case.block_table[0, 0]] = torch.nan
    output = case.attend()
    assert output[0].isnan().all()
    assert output[1].isfinite().all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(
    ("size", "narrow"),
    [(64, None), (40, None), (64, "e4m3"), (64, "scaled int8"), (40, "scaled e4m3")],
)
def test_chunking_never_changes_a_bit(
    dtype: torch.dtype, window: int, size: int, narrow: str | None
) -> None:
    """A prompt in one chunk, in uneven chunks, and token by token."""
    case = batch([(1300, 1300)], dtype=dtype, size=size, narrow=narrow)
    for is_chunked in (False, True) if window else (False,):
        _check_chunks(replace(case, sliding_window=window, is_chunked=is_chunked))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(6, 1), (7, 1), (8, 1), (9, 1)])
def test_chunking_never_changes_a_bit_of_many_heads(
    dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    _check_chunks(batch([(1300, 1300)], heads=heads, dtype=dtype))


def _check_chunks(whole: Batch) -> None:
    expected = whole.attend()
    cuts = [0, 1, 2, 65, 512, 700, 1024, *range(1290, 1301)]
    for begin, end in pairwise(cuts):
        chunk = replace(
            whole,
            query=whole.query[begin:end],
            query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
        )
        assert torch.equal(chunk.attend(), expected[begin:end])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("narrow", [None, "e5m2", "scaled int8"])
def test_other_requests_never_change_a_bit(dtype: torch.dtype, narrow: str | None) -> None:
    together = batch([*MIXED, (1, 3000)], dtype=dtype, narrow=narrow)
    outputs = together.attend()
    bounds = together.query_start_loc.tolist()
    for r, (begin, end) in enumerate(pairwise(bounds)):
        alone = replace(
            together,
            query=together.query[begin:end],
            block_table=together.block_table[r : r + 1],
            query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
            seq_lens=together.seq_lens[r : r + 1],
        )
        assert torch.equal(alone.attend(), outputs[begin:end])


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lens", [[(1, 9000)], [(100, 2500)], MIXED])
def test_thread_count_never_changes_a_bit(dtype: torch.dtype, lens: list[tuple[int, int]]) -> None:
    case = batch(lens, dtype=dtype)
    results = []
    for count in (1, 2, 3, 8):
        _cpu.set_num_threads(count)
        results.append(case.attend())
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_size_never_changes_a_bit(dtype: torch.dtype) -> None:
    """The same context in other blocks."""
    case = batch([(5, 200)], dtype=dtype, block_size=16)
    blocks = case.block_table[0, : math.ceil(200 / 16)].long()

    def in_one_block(cache: Tensor) -> Tensor:
        return cache[blocks].transpose(0, 1).reshape(1, cache.shape[1], -1, cache.shape[3])

    single = replace(
        case,
        key_cache=in_one_block(case.key_cache),
        value_cache=in_one_block(case.value_cache),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
    )
    assert torch.equal(single.attend(), case.attend())


def test_bad_ids_and_lengths_are_refused() -> None:
    case = batch([(2, 40)])
    for block in (-1, case.key_cache.shape[0]):
        table = case.block_table.clone()
        table[0, 2] = block
        with pytest.raises(IndexError, match="block table of request 0"):
            replace(case, block_table=table).attend()
    for seq_len in (1, 1000):
        with pytest.raises(IndexError, match=r"seq_lens\[0\]"):
            replace(case, seq_lens=torch.tensor([seq_len], dtype=torch.int32)).attend()
    for starts in ([1, 2], [0, 3], [0, -1]):
        with pytest.raises(IndexError, match="query_start_loc"):
            replace(case, query_start_loc=torch.tensor(starts, dtype=torch.int32)).attend()
    with pytest.raises(ValueError, match="do not fit"):
        replace(case, query=case.query[:, :8]).attend()
