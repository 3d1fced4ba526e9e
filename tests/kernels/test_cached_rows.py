"""8-bit caches are written and read as by the reference."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference import cache as cached_rows
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
# Types with, and without, a scale for each row.
FORMATS = [
    (torch.float8_e4m3fn, 0),
    (torch.float8_e5m2, 0),
    (torch.float8_e4m3fn, 4),
    (torch.int8, 4),
]


def all_codes(dtype: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def write(rows: Tensor, dtype: torch.dtype, scale_bytes: int, ops: object = cpu) -> Tensor:
    """Rows [T, D], written as the keys of a cache of one head; and as its values: the bytes."""
    caches = [torch.full((len(rows), 1, 1, rows.shape[1] + scale_bytes), 3).to(dtype) for _ in "kv"]
    heads = rows.unsqueeze(1)
    ops.reshape_and_cache(heads, heads, *caches, torch.arange(len(rows)))  # type: ignore[attr-defined]
    keys, values = (cache.view(torch.uint8)[:, 0, 0] for cache in caches)
    assert torch.equal(keys, values)
    return keys


def read(rows: Tensor, head_size: int, dtype: torch.dtype) -> Tensor:
    """Cached rows [T, row] as attention gives them back: each is the only value of a request."""
    cache = rows[:, None, None]
    number = torch.arange(len(rows), dtype=torch.int32)
    return cpu.paged_attention(
        torch.zeros(len(rows), 1, head_size, dtype=dtype),
        torch.zeros_like(cache.view(torch.uint8)).view(rows.dtype),
        cache,
        number.unsqueeze(1),
        torch.arange(len(rows) + 1, dtype=torch.int32),
        torch.ones_like(number),
        1.0,
    )[:, 0]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", FLOAT8)
def test_8_bit_values_round_trip(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    codes = all_codes(cache_dtype)
    values = codes.float()
    finite = values.isfinite() | values.isnan()  # 0 * infinity would not be read as itself
    codes, values = codes.view(torch.uint8)[finite], values[finite]
    rows = codes.view(cache_dtype).unsqueeze(1)
    for wide in (rows, rows.view(torch.uint8).expand(-1, 24).contiguous().view(cache_dtype)):
        seen = read(wide, wide.shape[1], dtype)
        expected = values.to(dtype).unsqueeze(1).expand_as(seen)
        torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(seen.signbit(), expected.signbit()) or values.isnan().any()
    written = write(values.to(dtype).unsqueeze(1), cache_dtype, 0).squeeze(1)
    is_nan = values.isnan()
    assert torch.equal(written[~is_nan], codes[~is_nan])
    assert (written[is_nan] & 0x7F == 0x7F).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", FLOAT8)
def test_rounding_is_to_nearest_even_and_saturates(
    dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    values = all_codes(cache_dtype).float()
    values = values[values.isfinite() & (values >= 0)].sort().values
    ties = (values[1:] + values[:-1]) / 2
    near = torch.cat([ties, ties.nextafter(ties + 1), ties.nextafter(-ties)])
    largest = float(values[-1])
    odd = [0.0, 1e-45, 1e-30, largest * 1.03, largest * 1.0625, largest * 2, 3e38, torch.inf]
    rows = torch.cat([values, near, torch.tensor(odd), torch.randn(500).exp() * 1e-3])
    rows = torch.cat([rows, -rows, torch.tensor([torch.nan])]).to(dtype).unsqueeze(1)
    written = write(rows, cache_dtype, 0)
    assert torch.equal(written, write(rows, cache_dtype, 0, reference))
    decoded = written.view(cache_dtype).float()
    assert decoded[:-1].isfinite().all() and decoded[-1].isnan()
    assert float(decoded[:-1].max()) == largest
    # No other code is nearer.
    wide = rows[:-1].float().clamp(-largest, largest)
    both = torch.cat([values, -values])
    nearest = (wide - both).abs().min(dim=1).values
    assert torch.equal((wide - decoded[:-1]).abs().squeeze(1), nearest)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_scaled_rows_match_the_reference(
    dtype: torch.dtype, cache_dtype: torch.dtype, size: int
) -> None:
    magnitudes = [0.0, 1e-45, 1e-38, 1e-31, 1e-29, 1e-6, 1.0, 300.0, 1e30, 3e38]
    rows = torch.rand(len(magnitudes) * 5, size) * 2 - 1
    rows = (rows * torch.tensor(magnitudes).repeat(5).unsqueeze(1)).to(dtype)
    ours = write(rows, cache_dtype, 4)
    assert torch.equal(ours, write(rows, cache_dtype, 4, reference))
    decoded = cached_rows.decode(ours.view(cache_dtype), size)
    largest = rows.float().abs().amax(1, keepdim=True)
    # Half of the coarsest step, that at the row's largest number, and rounding.
    step = (1 / 127 if cache_dtype == torch.int8 else 1 / 14) * 0.51
    assert ((decoded - rows.float()).abs() <= largest * step + 1e-30).all()
    assert torch.equal(read(ours.view(cache_dtype), size, torch.float32), decoded)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_non_finite_scaled_row_reads_as_nan(cache_dtype: torch.dtype) -> None:
    for odd, place in product([torch.nan, -torch.nan, torch.inf, -torch.inf], [0, 16, 19]):
        rows = torch.randn(3, 20)
        rows[1, place] = odd
        seen = read(write(rows, cache_dtype, 4).view(cache_dtype), 20, torch.float32)
        assert seen[1].isnan().all()
        assert seen[::2].isfinite().all()
        expected = cached_rows.decode(write(rows, cache_dtype, 4, reference).view(cache_dtype), 20)
        assert expected[1].isnan().all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("cache_dtype", "scale_bytes"), FORMATS)
def test_a_nan_key_reaches_the_output(cache_dtype: torch.dtype, scale_bytes: int) -> None:
    for place in range(20):
        rows = torch.randn(1, 20)
        rows[0, place] = torch.nan
        key = write(rows, cache_dtype, scale_bytes).view(cache_dtype)[:, None, None]
        value = write(torch.randn(1, 20), cache_dtype, scale_bytes).view(cache_dtype)
        for dtype in DTYPES:
            one = torch.ones(1, dtype=torch.int32)
            starts = torch.tensor([0, 1], dtype=torch.int32)
            query = torch.randn(1, 1, 20).to(dtype)
            output = cpu.paged_attention(
                query, key, value[:, None, None], one[None] * 0, starts, one, 1.0
            )
            assert output.isnan().all()


def test_rows_of_invalid_length_are_refused() -> None:
    key = torch.randn(2, 1, 8)
    slots = torch.arange(2)
    for dtype, size in ((torch.int8, 8), (torch.float8_e4m3fn, 10), (torch.bfloat16, 12)):
        cache = torch.zeros(2, 1, 16, size).to(dtype)
        for ops in (cpu, reference):
            with pytest.raises(ValueError, match="do not hold 8"):
                ops.reshape_and_cache(key, key, cache, cache.clone(), slots)
