"""The CUDA kernels equal the reference, run on the host by tests/csrc/cuda/emulation.

benchmarks/gpu/check_kernels.py tests on a GPU what emulation cannot show.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels import emulated_cuda
from tests.kernels.test_attention import Batch, batch
from vllm_lite.kernels.gpu.cuda.paged import HEAD_SIZES, MAX_UNITS, PagedOps, plan_splits
from vllm_lite.kernels.reference.ops import Ops as reference

ROOT = Path(__file__).parents[2]
DTYPES = [torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Enough that every context is cut as finely as it can be, and so few that none is.
MANY, ONE = 10_000, 1


@pytest.fixture(scope="module")
def calls() -> emulated_cuda.EmulatedCuda:
    if emulated_cuda.compiler() is None:
        pytest.skip("no C++ compiler to build the emulated kernels with")
    return emulated_cuda.build()


@pytest.fixture(params=[ONE, MANY], ids=["whole", "split"])
def ops(request: pytest.FixtureRequest, calls: emulated_cuda.EmulatedCuda) -> PagedOps:
    return PagedOps(calls, "cpu", request.param)


def check(case: Batch, ops: PagedOps) -> None:
    wide = replace(
        case,
        query=case.query.float(),
        key_cache=case.key_cache.float(),
        value_cache=case.value_cache.float(),
    )
    actual, expected = case.attend(ops), wide.attend(reference)
    tolerance = TOLERANCE[case.query.dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance / 2)


def decode(lens: list[int], **options: object) -> Batch:
    return batch([(1, n) for n in lens], **{"dtype": torch.bfloat16, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", HEAD_SIZES)
def test_attention(size: int, dtype: torch.dtype, ops: PagedOps) -> None:
    check(decode([1, 16, 17, 257, 330], size=size, dtype=dtype), ops)


@pytest.mark.parametrize("cache_dtype", FLOAT8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", HEAD_SIZES)
def test_attention_over_8_bit_caches(
    size: int, dtype: torch.dtype, cache_dtype: torch.dtype, ops: PagedOps
) -> None:
    case = decode([1, 33, 300], size=size, dtype=dtype)
    caches = [cache.to(cache_dtype) for cache in (case.key_cache, case.value_cache)]
    check(replace(case, key_cache=caches[0], value_cache=caches[1]), ops)


@pytest.mark.parametrize("cache_dtype", FLOAT8)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_8_bit_value_is_read_exactly(
    dtype: torch.dtype, cache_dtype: torch.dtype, calls: emulated_cuda.EmulatedCuda
) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(cache_dtype)
    codes = codes[codes.float().isfinite()]
    numbers = codes.repeat(2)[:256].view(1, 1, 1, 256)
    # Of one position the weight is 1, so that its value is the result.
    output = PagedOps(calls, "cpu", ONE).paged_attention(
        torch.zeros(1, 1, 256, dtype=dtype),
        numbers.expand(1, 1, 8, 256).clone(),
        numbers.expand(1, 1, 8, 256).clone(),
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.ones(1, dtype=torch.int32),
        1.0,
    )
    assert torch.equal(output.flatten(), numbers.flatten().to(dtype))


@pytest.mark.parametrize("block_size", [8, 16, 24, 128])
@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 8), (7, 1), (40, 2)])
def test_any_blocks_and_groups(heads: tuple[int, int], block_size: int, ops: PagedOps) -> None:
    lens = [block_size - 1, block_size, block_size + 1, 2 * block_size]
    check(decode(lens, heads=heads, block_size=block_size), ops)


@pytest.mark.parametrize("window", [1, 9, 63, 64, 65, 300, 1000])
def test_window_edges(window: int, ops: PagedOps) -> None:
    check(replace(decode([64, 65, 600], heads=(4, 2)), sliding_window=window), ops)


def test_soft_capped_scores(ops: PagedOps) -> None:
    case = decode([40, 300], heads=(4, 2))
    check(replace(case, query=case.query * 4, soft_cap=3.0), ops)


def test_several_tokens_of_a_request(ops: PagedOps) -> None:
    check(batch([(5, 40), (0, 0), (1, 9), (3, 3)], (4, 2), dtype=torch.bfloat16), ops)


def test_tokens_of_no_request_become_zero(ops: PagedOps) -> None:
    case = decode([9, 3])
    padded = replace(case, query=torch.cat([case.query, case.query]))
    assert torch.equal(padded.attend(ops)[:2], case.attend(ops))
    assert not padded.attend(ops)[2:].any()
    idle = replace(case, seq_lens=torch.tensor([0, 3], dtype=torch.int32))
    assert not idle.attend(ops)[0].any()


def test_blocks_may_lie_beyond_32_bits_of_offset(ops: PagedOps) -> None:
    case = decode([24, 9], dtype=torch.float16)
    stride = (2**31 // (len(case.key_cache) - 1) + 64) // 8 * 8
    wide = []
    for cache in (case.key_cache, case.value_cache):
        far = torch.empty(stride * len(cache), dtype=cache.dtype)
        far = far.as_strided(cache.shape, (stride, *cache.stride()[1:]))
        wide.append(far.copy_(cache))
    far_case = replace(case, key_cache=wide[0], value_cache=wide[1])
    assert torch.equal(far_case.attend(ops), case.attend(ops))


def test_splits_batch_and_thread_order_never_change_a_bit(
    calls: emulated_cuda.EmulatedCuda,
) -> None:
    """Fewer than two barriers a meeting of threads would show in one of the orders."""
    case = replace(decode([1100, 3, 700], heads=(4, 2)), sliding_window=900)
    expected = case.attend(PagedOps(calls, "cpu", ONE))
    for processors in (2, 5, MANY):
        assert torch.equal(case.attend(PagedOps(calls, "cpu", processors)), expected)
    calls.run_backwards(True)
    backwards = case.attend(PagedOps(calls, "cpu", ONE))
    calls.run_backwards(False)
    assert torch.equal(backwards, expected)
    alone = replace(
        case,
        query=case.query[2:],
        block_table=case.block_table[2:],
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=case.seq_lens[2:],
    )
    assert torch.equal(alone.attend(PagedOps(calls, "cpu", MANY)), expected[2:])


def test_a_long_context_has_longer_units(calls: emulated_cuda.EmulatedCuda) -> None:
    case = decode([9000], heads=(1, 1))
    whole = case.attend(PagedOps(calls, "cpu", ONE))
    check(case, PagedOps(calls, "cpu", MANY))
    assert torch.equal(whole, case.attend(PagedOps(calls, "cpu", MANY)))


def test_an_unknown_block_is_not_read(ops: PagedOps) -> None:
    case = decode([20, 20])
    table = case.block_table.clone()
    table[0, 0], table[0, 1] = -7, 10**9
    output = replace(case, block_table=table).attend(ops)
    assert output.isfinite().all() and torch.equal(output[1], case.attend(ops)[1])


def test_nan_stays_within_its_request(ops: PagedOps) -> None:
    case = decode([40, 40])
    case.key_cache[case.block_table[0, 0]] = torch.nan
    output = case.attend(ops)
    assert output[0].isnan().all() and output[1].isfinite().all()


def changed(case: Batch, name: str, to: Tensor) -> Batch:
    return replace(case, **{name: to})  # type: ignore[arg-type]


def test_unsupported_arguments_are_refused(ops: PagedOps) -> None:
    case = decode([20, 3])
    wrong = {
        "takes heads of": decode([3], size=40),
        "takes float16 or bfloat16": decode([3], dtype=torch.float32),
        "cannot use caches": decode([3], cache_dtype=torch.float16),
        "do not share": changed(case, "query", case.query[:, :8]),
        "begin at multiples": changed(
            case, "query", case.query[:, :, 1:].repeat(1, 1, 2)[..., 1:65]
        ),
        "seq_lens|an index": changed(case, "seq_lens", case.seq_lens[:1]),
        "block_table": changed(case, "block_table", case.block_table.long()),
        "one shape": changed(case, "value_cache", case.value_cache[1:]),
    }
    for reason, bad in wrong.items():
        with pytest.raises(ValueError, match=reason):
            bad.attend(ops)
    with pytest.raises(ValueError, match="on one cuda device"):
        case.attend(PagedOps(ops._calls))


def test_contexts_are_split_until_the_device_is_full() -> None:
    assert plan_splits(8, 255, 132) == (1, 1)
    assert plan_splits(8, 4096, 132) == (16, 1)
    assert plan_splits(8, 10**6, 132) == (MAX_UNITS, 1)
    assert plan_splits(300, 10**6, 132) == (3, 1)
    assert plan_splits(1000, 2048, 132) == (1, 1)
    assert plan_splits(1000, 10**6, 132) == (4, 16)
    assert plan_splits(10_000, 10**6, 132) == (1, 1)


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus_within_its_recorded_resources() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    command = [sys.executable, ROOT / "benchmarks/gpu/cuda_resources.py", "--check"]
    # A sanitizer that is loaded into this process is not for the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
