"""Norms, rotary embedding and cache writes equal the reference."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference

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
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [0, 1, 70])
def test_rows_by_their_own_statistics(dtype: torch.dtype, size: int, num_rows: int) -> None:
    x, like = (torch.randn(num_rows, size + 3).to(dtype)[:, 1 : 1 + size] for _ in range(2))
    x[::2] *= 1e-4
    for least in (1e-5, 1.5):
        expected = reference.match_rms(x, like, least)
        assert_close(cpu.match_rms(x, like, least), expected)
    alone = [cpu.match_rms(row[None], other[None], 1.5) for row, other in zip(x, like, strict=True)]
    actual = cpu.match_rms(x.clone(), like, 1.5)
    assert not alone or torch.equal(torch.cat(alone), actual)
    for deviations in (1.6, 0.0, -0.5):
        apart = x.float() - x.float().mean(-1, keepdim=True)
        cut = deviations * apart.square().mean(-1, keepdim=True).sqrt()
        kept = cpu.keep_outliers(x, deviations)
        torch.testing.assert_close(
            kept, reference.keep_outliers(x, deviations), rtol=8e-3, atol=1e-5
        )
        assert not kept[apart < cut - 1e-5].any()
    assert cpu.keep_outliers(x, 0.5, out=x) is x


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 40, 577])
@pytest.mark.parametrize("num_tokens", [0, 1, 70])
def test_rows_are_mixed(dtype: torch.dtype, size: int, num_tokens: int) -> None:
    x = torch.randn(num_tokens, 5, size).to(dtype)[:, 1:4]
    base = torch.randn(num_tokens, 6, size).to(dtype)[:, ::3]
    factors, weight = torch.randn(num_tokens, 2, 3).to(dtype), torch.randn(size).to(dtype)
    for given in (
        (x, factors),
        (x, factors, base, 1.0),
        (x, None, base, -0.5, weight),
        (x[:, :1], None, base, 1.0),
        (x, None, None, 1 / 3),
    ):
        assert_close(cpu.mix_rows(*given), reference.mix_rows(*given))
    expected = cpu.mix_rows(x, factors, base)
    alone = [cpu.mix_rows(x[i : i + 1], factors[i : i + 1], base[i : i + 1]) for i in range(len(x))]
    assert not alone or torch.equal(torch.cat(alone), expected)
    assert cpu.mix_rows(x, factors, base, out=base) is base
    assert torch.equal(base, expected)


def test_mixed_rows_must_fit() -> None:
    x, factors, base = torch.randn(4, 3, 8), torch.randn(4, 2, 3), torch.randn(4, 2, 8)
    for wrong in ((x, factors[:, :, :2]), (x, factors[:3]), (x, factors, base[:, :1])):
        with pytest.raises(ValueError, match=r"must match x|must be"):
            cpu.mix_rows(*wrong)
    with pytest.raises(ValueError, match=r"weight must be \[N\]"):
        cpu.mix_rows(x, factors, weight=torch.ones(7))
    with pytest.raises(ValueError, match="must match x"):
        cpu.match_rms(base[:, 0], base[:3, 0], 1e-5)
    with pytest.raises(ValueError, match="not positive"):
        cpu.match_rms(base[:, 0], base[:, 1], 0.0)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [6, 64, 100])
def test_heads_are_normalised_in_place(dtype: torch.dtype, size: int) -> None:
    qkv, weight = torch.randn(5, 9, size).to(dtype), torch.randn(size).to(dtype)
    expected = qkv.clone()
    reference.rms_norm(expected[:, 2:6], weight, 1e-6, out=expected[:, 2:6])
    cpu.rms_norm(qkv[:, 2:6], weight, 1e-6, out=qkv[:, 2:6])
    assert_close(qkv, expected)
    reference.layer_norm(expected[:, 2:6], weight, None, 1e-6, out=expected[:, 2:6])
    cpu.layer_norm(qkv[:, 2:6], weight, None, 1e-6, out=qkv[:, 2:6])
    assert_close(qkv, expected)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_heads_may_have_weights_of_their_own(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    if weight_dtype not in (dtype, torch.float32):
        return
    qkv = torch.randn(5, 9, 20).to(dtype)
    weight, bias = torch.randn(2, 4, 20).to(weight_dtype)
    heads = qkv[:, 2:6]
    assert_close(cpu.rms_norm(heads, weight, 1e-6), reference.rms_norm(heads, weight, 1e-6))
    expected = reference.layer_norm(heads, weight, bias, 1e-6)
    assert_close(cpu.layer_norm(heads, weight, bias, 1e-6, out=heads), expected)
    with pytest.raises(ValueError, match="one shape"):
        cpu.layer_norm(heads, weight, bias[0], 1e-6)


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
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm(dtype: torch.dtype, size: int, has_bias: bool) -> None:
    wide = (torch.randn(70, size + 5) + 3).to(dtype)
    x, weight, bias = wide[:, 2 : 2 + size], torch.randn(size), torch.randn(size)
    for kind in {dtype, torch.float32}:
        factors = weight.to(kind), bias.to(kind) if has_bias else None
        expected = reference.layer_norm(x, *factors, 1e-5)
        normed = cpu.layer_norm(x, *factors, 1e-5)
        assert_close(normed, expected)
        alone = torch.cat([cpu.layer_norm(row[None], *factors, 1e-5) for row in x])
        assert torch.equal(alone, normed)
    out = x.clone()
    assert cpu.layer_norm(out, *factors, 1e-5, out=out) is out
    assert torch.equal(out, normed)


@pytest.mark.usefixtures("isa")
def test_layer_norm_is_accurate_with_a_large_mean() -> None:
    x = torch.randn(4, 1000) + 1e4
    exact = torch.nn.functional.layer_norm(x.double(), (1000,))
    normed = cpu.layer_norm(x, torch.ones(1000), torch.zeros(1000), 1e-5)
    # The mean itself is rounded to 1e4 / 2^24.
    torch.testing.assert_close(normed.double(), exact, rtol=0, atol=2e-3)
    assert not cpu.layer_norm(torch.full((1, 33), 7.0), torch.ones(33), None, 1e-5).any()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("size", SIZES)
def test_a_float32_weight_is_applied_before_rounding(size: int) -> None:
    x, weight = torch.randn(9, size).bfloat16(), torch.randn(size) + 1
    for norm in (cpu.rms_norm, partial(cpu.layer_norm, bias=torch.randn(size))):
        wide = norm(x.float(), weight, eps=1e-6)
        assert torch.equal(norm(x, weight, eps=1e-6), wide.bfloat16())
    assert_close(cpu.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_fused_add_is_an_addition_then_a_norm(dtype: torch.dtype, size: int) -> None:
    x, residual = torch.randn(9, size).to(dtype), torch.randn(9, size).to(dtype)
    weight, total = torch.randn(size).to(dtype), x + residual
    bias = torch.randn(size).to(dtype)
    for fused, norm, factors in (
        ("fused_add_rms_norm", "rms_norm", [weight]),
        ("fused_add_rms_norm", "rms_norm", [weight.float()]),
        ("fused_add_layer_norm", "layer_norm", [weight, bias]),
        ("fused_add_layer_norm", "layer_norm", [weight, None]),
    ):
        given = x.clone(), residual.clone()
        normed, summed = getattr(cpu, fused)(*given, *factors, 1e-5)
        assert normed is given[0]
        assert summed is given[1]
        assert torch.equal(summed, total)
        assert torch.equal(normed, getattr(cpu, norm)(total, *factors, 1e-5))
        assert_close(normed, getattr(reference, norm)(total, *factors, 1e-5))


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
    x, ones = torch.randn(4, 8), torch.ones(8)
    with pytest.raises(ValueError, match=r"got torch\.float64"):
        cpu.rms_norm(x.double(), ones.double(), 1e-5)
    for weight, bias in ((ones.bfloat16(), None), (ones, ones.bfloat16())):
        with pytest.raises(ValueError, match=r"must both be torch\.float32"):
            cpu.layer_norm(x, weight, bias, 1e-5)
    with pytest.raises(ValueError, match="dense rows"):
        cpu.rms_norm(x.t(), torch.ones(4), 1e-5)
    for wrong in (torch.ones(7), torch.ones(1)):
        with pytest.raises(ValueError, match="must match x"):
            cpu.rms_norm(x, wrong, 1e-5)
