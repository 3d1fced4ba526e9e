"""int8 and fp8 in Triton's interpreter: quantised values equal the reference to the bit.

Fused norms are tested without bfloat16, which the interpreter cuts off instead of rounding it.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.reference.ops import GpuOps as reference
from vllm_lite.kernels.reference.quantize import LARGEST
from vllm_lite.kernels.reference.scaled_linear import SCALE_BLOCK

NARROW = list(LARGEST)
INFINITY = float("inf")


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.dtype is theirs.dtype and torch.equal(
        ours.view(torch.uint8), theirs.view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("group_size", [0, 48])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_quantize_rows(dtype: torch.dtype, group_size: int) -> None:
    x = torch.randn(7, 144) * torch.tensor([1, 1e-3, 1e4, 0, 1e30, 1e-38, 5])[:, None]
    x[1, 3], x[2, 7], x[6, :2] = INFINITY, float("nan"), -0.0
    ours = ops.quantize_rows(x[:, :], dtype, group_size)
    theirs = reference.quantize_rows(x, dtype, group_size)
    assert same_bits(ours[0], theirs[0])
    assert torch.equal(ours[1].nan_to_num(7.0), theirs[1].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_quantisation_rounds_to_the_nearest_value(dtype: torch.dtype) -> None:
    if dtype is torch.int8:
        codes = torch.arange(-127, 128).to(torch.int8).float()
    else:
        codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        codes = codes[codes.isfinite()]
    codes = codes.sort().values
    middles = (codes[1:] + codes[:-1]) / 2
    beside = [torch.nextafter(middles, torch.tensor(end)) for end in (-1e9, 1e9)]
    large = torch.tensor([1e5, -1e5, INFINITY, -INFINITY])
    x = torch.cat([codes, middles, *beside, large])[None]
    scale = torch.ones(1)
    ours = ops.quantize_by_scale(x, scale, dtype)
    assert same_bits(ours, reference.quantize_by_scale(x, scale, dtype))
    assert torch.equal(ours[0, : len(codes)].float(), codes)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("stored", "size"), [(torch.float32, 577), (torch.float16, 64)])
def test_norms_with_quantised_results(dtype: torch.dtype, stored: torch.dtype, size: int) -> None:
    wide = torch.randn(3, size + 3).to(stored)[:, :size]
    weight, residual = torch.randn(size).to(stored), torch.randn(3, size).to(stored)
    results = []
    for implementation in (ops, reference):
        total = residual.clone()
        plain = implementation.rms_norm_quantized(wide, weight, 1e-5, dtype)
        added = implementation.fused_add_rms_norm_quantized(wide, total, weight, 1e-5, dtype)
        results.append((plain, added, total))
    (plain, added, total), (their_plain, their_added, their_total) = results
    assert torch.equal(total, their_total)
    for ours, theirs in ((plain, their_plain), (added, their_added)):
        # A mean that differs in its last bit may move a scale by as much, and a few codes by one.
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-2, atol=0)
        moved = (ours[0].float() * ours[1] - theirs[0].float() * theirs[1]).abs()
        assert (moved > 0.13 * theirs[1] * LARGEST[dtype]).sum() == 0
        assert (ours[0].float() != theirs[0].float()).float().mean() < 0.01


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("rows", "stored", "size"), [(1, torch.float32, 577), (3, torch.half, 64)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gated_activations_with_quantised_results(
    dtype: torch.dtype, rows: int, stored: torch.dtype, size: int
) -> None:
    x = torch.randn(rows, 2 * size + 3).mul(2).to(stored)[:, : 2 * size]
    x[0, 0] = INFINITY if rows > 1 else 1.0
    for name in ("silu", "gelu", "gelu_tanh"):
        codes, scales = ops.act_and_mul_quantized(x, name, dtype)
        specified = reference.act_and_mul_quantized
        their_codes, their_scales = specified(x, name, dtype)
        # torch's gelu of infinity is infinite or, in its code for AVX-512, not a number.
        finite = their_scales.isfinite()
        assert torch.equal(scales.isfinite(), finite)
        torch.testing.assert_close(scales[finite], their_scales[finite], rtol=1e-3, atol=0)
        # An activation that differs in its last bit may move a code by one.
        ours, theirs = codes.float(), their_codes.float()
        assert (ours != theirs).float().mean() < 0.02
        moved = ((ours - theirs) * their_scales)[scales[:, 0].isfinite()].abs()
        assert (
            moved > 0.13 * LARGEST[dtype] * float(their_scales.nan_to_num(0, 0).max())
        ).sum() == 0


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "kind"),
    [(1, 70, 96, "outputs"), (17, 33, 200, "one"), (3, 150, 256, "blocks"), (40, 9, 64, "groups")],
)
def test_scaled_linear(
    dtype: torch.dtype,
    is_native: bool,
    rows: int,
    outputs: int,
    inputs: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "has_float8", lambda _: is_native)
    group = {"blocks": SCALE_BLOCK, "groups": 32}.get(kind, 0)
    x, x_scales = reference.quantize_rows(torch.randn(rows, inputs), dtype, group)
    weight, scales = reference.quantize_rows(torch.randn(outputs, inputs), dtype, group)
    if kind == "one":
        x_scales, scales = x_scales[:1, :1], scales[:1, :1]
    elif kind == "blocks":
        scales = scales[::SCALE_BLOCK].contiguous()
    bias = torch.randn(outputs) if rows < 20 else None
    ours, theirs = (
        module.scaled_linear(x, x_scales, weight, scales, bias, torch.float32)
        for module in (ops, reference)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_split_sums_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, x_scales = reference.quantize_rows(torch.randn(2, 1300), torch.int8)
    weight, scales = reference.quantize_rows(torch.randn(30, 1300), torch.int8)
    arguments = (x, x_scales, weight, scales, torch.randn(30), torch.float16)
    whole = ops.scaled_linear(*arguments)
    monkeypatch.setattr(tuning, "processor_count", lambda _: 100)
    assert tuning.num_splits(1, 4, 2, 1300, 128, 100) == 2
    assert tuning.num_splits(64, 4, 8, 4096, 128, 132) == 8  # 4 programs of 4 warps a processor
    assert tuning.num_splits(64, 4, 64, 4096, 128, 132) == 4  # sums take as much as weights
    assert tuning.num_splits(448, 4, 8, 4096, 128, 132) == 1
    torch.testing.assert_close(ops.scaled_linear(*arguments), whole)


def test_weights_may_lie_beyond_32_bits_of_offset() -> None:
    rows = torch.randint(-127, 127, (3, 64), dtype=torch.int8)
    stride = 2**30 + 64  # the last row lies beyond 2**31 elements
    far = torch.empty(2 * stride + 64, dtype=torch.int8).as_strided((3, 64), (stride, 1))
    far.copy_(rows)
    one = torch.ones(1, 1)
    ours = ops.scaled_linear(rows, one, far, one, None, torch.float32)
    theirs = reference.scaled_linear(rows, one, rows, one, None, torch.float32)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("table", ["products", "attention"])
def test_entries_match_by_newest_target_and_smallest_fitting_size(table: str) -> None:
    entries = tuning.load(table)
    for kind in {entry["kind"] for entry in entries}:
        for size in (1, 16, 17, 128, 10**6):
            for target in (80, 86, 89, 90, 100):
                own = [e for e in entries if e["kind"] == kind and e["target"] <= target]
                newest = [e for e in own if e["target"] == max(e["target"] for e in own)]
                fitting = [e for e in newest if e["size"] >= size]
                best = min(fitting, key=lambda e: e["size"]) if fitting else newest[-1]
                assert tuning.entry(table, kind, size, target) == best


def test_tables_are_sorted_and_say_where_entries_come_from() -> None:
    for table in ("products", "attention"):
        entries = tuning.load(table)
        places = [(e["kind"], e["target"], e["size"]) for e in entries]
        assert places == sorted(set(places))
        assert all(e["origin"] == "compiled" or "measured on" in e["origin"] for e in entries)
