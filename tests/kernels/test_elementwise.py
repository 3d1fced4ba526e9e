"""Norms, rotary embedding, gated activation and cache writes equal the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vllm_lite.kernels import cpu, reference

DTYPES = [torch.float32, torch.bfloat16]
# Rows of every remainder: whole vectors, parts of one, less than one.
SIZES = [1, 7, 16, 40, 576, 1000]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    # In bfloat16 one unit in the last place: sums are added in another order.
    tolerance = 1e-5 if expected.dtype == torch.float32 else 8e-3
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=1e-5)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [0, 1, 70])
def test_rms_norm(dtype: torch.dtype, size: int, num_rows: int) -> None:
    x, weight = torch.randn(num_rows, size).to(dtype), torch.randn(size).to(dtype)
    assert_close(cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_takes_strided_rows_and_writes_in_place(dtype: torch.dtype) -> None:
    wide = torch.randn(5, 200).to(dtype)
    x, weight = wide[:, 30:130], torch.randn(100).to(dtype)
    expected, rest = reference.rms_norm(x, weight, 1e-6), wide[:, 130:].clone()
    assert cpu.rms_norm(x, weight, 1e-6, out=x) is x
    assert_close(x, expected)
    assert torch.equal(wide[:, 130:], rest)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [6, 64, 100])
def test_heads_are_normalised_in_place(dtype: torch.dtype, size: int) -> None:
    qkv, weight = torch.randn(5, 9, size).to(dtype), torch.randn(size).to(dtype)
    expected = qkv.clone()
    reference.rms_norm(expected[:, 2:6], weight, 1e-6, out=expected[:, 2:6])
    cpu.rms_norm(qkv[:, 2:6], weight, 1e-6, out=qkv[:, 2:6])
    assert_close(qkv, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_embedding(dtype: torch.dtype) -> None:
    rows, ids = torch.randn(50, 33).to(dtype), torch.randint(0, 50, (2000,))
    assert torch.equal(cpu.embedding(ids, rows), reference.embedding(ids, rows))
    for wrong in (-1, 50):
        with pytest.raises(IndexError, match="embedding"):
            cpu.embedding(torch.tensor([0, wrong]), rows)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_fused_add_is_an_addition_then_a_norm(dtype: torch.dtype, size: int) -> None:
    x, residual = torch.randn(9, size).to(dtype), torch.randn(9, size).to(dtype)
    weight, total = torch.randn(size).to(dtype), x + residual
    normed, summed = cpu.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert normed is x
    assert summed is residual
    assert torch.equal(summed, total)
    assert torch.equal(normed, cpu.rms_norm(total, weight, 1e-5))
    assert_close(normed, reference.rms_norm(total, weight, 1e-5))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 40, 1536])
def test_silu_and_mul(dtype: torch.dtype, size: int) -> None:
    x = (torch.randn(33, 2 * size + 3) * 20).to(dtype)[:, : 2 * size]
    assert_close(cpu.silu_and_mul(x), reference.silu_and_mul(x))


@pytest.mark.usefixtures("isa")
def test_silu_keeps_infinities_and_nan() -> None:
    gate = torch.tensor([-torch.inf, -1e4, -88.0, -0.0, 0.0, 88.0, 1e4, torch.inf, torch.nan])
    x = torch.cat([gate, torch.ones_like(gate)]).unsqueeze(0)
    result = cpu.silu_and_mul(x)[0]
    assert result[-1].isnan()
    assert result[-2] == torch.inf
    # e^88 is bounded, so the far negative end is a tiny number where the exact result is 0.
    torch.testing.assert_close(result[1:-2], reference.silu_and_mul(x)[0, 1:-2])


def qkv_views(num_tokens: int, heads: int, kv_heads: int, size: int) -> tuple[Tensor, ...]:
    """Query, key and value as views of one matrix, as a fused projection gives them."""
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * size)
    parts = qkv.split([heads * size, kv_heads * size, kv_heads * size], dim=-1)
    return tuple(part.view(num_tokens, -1, size) for part in parts)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("size", "rot_dim"), [(64, 64), (40, 40), (80, 32), (128, 126), (16, 2)])
def test_rotary_embedding(dtype: torch.dtype, is_neox: bool, size: int, rot_dim: int) -> None:
    query, key, _ = (part.to(dtype) for part in qkv_views(37, 9, 3, size))
    angles = torch.rand(50, rot_dim // 2) * 6
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
    positions = torch.randint(0, 50, (37,))
    expected = query.clone(), key.clone()
    reference.rotary_embedding(positions, *expected, cache, is_neox)
    cpu.rotary_embedding(positions, query, key, cache, is_neox)
    assert_close(query, expected[0])
    assert_close(key, expected[1])


@pytest.mark.usefixtures("isa")
def test_rotary_rotates_views_and_leaves_their_neighbours() -> None:
    qkv = torch.randn(5, 5 * 8)
    query, key = qkv[:, :24].view(5, 3, 8), qkv[:, 24:32].view(5, 1, 8)
    value, expected = qkv[:, 32:].clone(), (query.clone(), key.clone())
    cache = torch.randn(9, 8)
    positions = torch.tensor([0, 8, 3, 3, 1])
    reference.rotary_embedding(positions, *expected, cache)
    cpu.rotary_embedding(positions, query, key, cache)
    assert_close(query, expected[0])
    assert_close(key, expected[1])
    assert torch.equal(qkv[:, 32:], value)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize(("size", "block_size"), [(64, 16), (40, 8), (128, 128), (16, 24)])
def test_reshape_and_cache(
    dtype: torch.dtype, cache_dtype: torch.dtype, size: int, block_size: int
) -> None:
    _, key, value = (part.to(dtype) for part in qkv_views(60, 6, 3, size))
    slots = torch.randperm(20 * block_size)[:60]
    slots[::7] = -1
    actual = [torch.full((20, 3, block_size, size), 7.0, dtype=cache_dtype) for _ in range(2)]
    expected = [cache.clone() for cache in actual]
    reference.reshape_and_cache(key, value, *expected, slots)
    cpu.reshape_and_cache(key, value, *actual, slots)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_ids_out_of_bounds_are_refused_before_anything_is_written() -> None:
    key = torch.randn(2, 1, 8)
    cache = torch.zeros(4, 1, 16, 8)
    with pytest.raises(IndexError, match="slot 64 is beyond the cache of 64 slots"):
        cpu.reshape_and_cache(key, key, cache, cache.clone(), torch.tensor([0, 64]))
    assert not cache.any()
    for position in (-1, 9):
        with pytest.raises(IndexError, match="outside the rotary cache"):
            cpu.rotary_embedding(torch.tensor([0, position]), key, key, torch.zeros(9, 8))


def test_wrong_types_and_strides_are_refused() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match=r"got torch\.float64"):
        cpu.silu_and_mul(x.double())
    with pytest.raises(ValueError, match=r"float32 and torch\.bfloat16"):
        cpu.rms_norm(x, torch.ones(8, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match="dense rows"):
        cpu.silu_and_mul(x.t())
    with pytest.raises(ValueError, match="must match x"):
        cpu.rms_norm(x, torch.ones(7), 1e-5)
