"""The GPU's kernels equal the reference: run by Triton's interpreter, and compiled for real GPUs.

The interpreter multiplies no bfloat16 tiles, so that attention is tested in float32 and float16;
that bfloat16 compiles is tested ahead of time.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import triton

from tests.kernels.test_attention import NARROW, Batch, batch
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.gpu.triton.attention import splits as attention_splits
from vllm_lite.kernels.reference.elementwise import ACTIVATIONS
from vllm_lite.kernels.reference.ops import GpuOps as reference

ROOT = Path(__file__).parents[2]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def check(case: Batch) -> None:
    actual, expected = case.attend(ops), case.attend(reference)
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance / 2)


def close(actual: object, expected: object, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 96), (2, 577), (5, 2048)])
def test_norms(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    wide = torch.randn(shape[0], shape[1] + 5).to(dtype)[:, : shape[1]]
    weight = torch.randn(shape[1]).to(dtype)
    close(ops.rms_norm(wide, weight, 1e-5), reference.rms_norm(wide, weight, 1e-5), dtype)
    residual = torch.randn(shape).to(dtype)
    ours = ops.fused_add_rms_norm(wide.clone(), residual.clone(), weight, 1e-5)
    theirs = reference.fused_add_rms_norm(wide.clone(), residual.clone(), weight, 1e-5)
    close(ours, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 96), (2, 577)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norms_and_wide_weights(
    dtype: torch.dtype, shape: tuple[int, int], has_bias: bool
) -> None:
    wide = (torch.randn(shape[0], shape[1] + 5) + 2).to(dtype)[:, : shape[1]]
    weight, bias = torch.randn(2, shape[1])
    for kind in {dtype, torch.float32}:
        factors = weight.to(kind), bias.to(kind) if has_bias else None
        ours = ops.layer_norm(wide, *factors, 1e-5)
        close(ours, reference.layer_norm(wide, *factors, 1e-5), dtype)
        if dtype is torch.bfloat16:
            continue  # the interpreter cuts sums off instead of rounding them
        given = [(wide.clone(), wide.flip(0)) for _ in range(2)]
        ours = ops.fused_add_layer_norm(*given[0], *factors, 1e-5)
        close(ours, reference.fused_add_layer_norm(*given[1], *factors, 1e-5), dtype)
        given = [(wide.clone(), wide.flip(0)) for _ in range(2)]
        ours = ops.fused_add_rms_norm(*given[0], factors[0], 1e-5)
        close(ours, reference.fused_add_rms_norm(*given[1], factors[0], 1e-5), dtype)
    close(ops.rms_norm(wide, weight, 1e-5), reference.rms_norm(wide, weight, 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normalised_in_place(dtype: torch.dtype) -> None:
    qkv, weight = torch.randn(4, 7, 96).to(dtype), torch.randn(96).to(dtype)
    ours, theirs = qkv.clone(), qkv.clone()
    ops.rms_norm(ours[:, 2:6], weight, 1e-5, out=ours[:, 2:6])
    reference.rms_norm(theirs[:, 2:6], weight, 1e-5, out=theirs[:, 2:6])
    weight, bias = torch.randn(2, 4, weight.shape[0]).to(dtype)
    ops.layer_norm(ours[:, 2:6], weight, bias, 1e-5, out=ours[:, 2:6])
    reference.layer_norm(theirs[:, 2:6], weight, bias, 1e-5, out=theirs[:, 2:6])
    close(ours, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 80, 1536])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(dtype: torch.dtype, size: int, name: str) -> None:
    x = torch.randn(3, 2 * size + 1).mul(3).to(dtype)[:, : 2 * size]
    close(ops.act_and_mul(x, name), reference.act_and_mul(x, name), dtype)
    expected = reference.activation(x, name)
    close(ops.activation(x, name, out=x), expected, dtype)
    close(x, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_xielu(dtype: torch.dtype) -> None:
    x = torch.randn(3, 1100).mul(3).to(dtype)
    for curve in ((0.8, 0.8, 0.5, -1e-6), (1.3, 2.1, 0.25, -0.75)):
        close(ops.xielu(x, *curve), reference.xielu(x, *curve), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 96, 1100])
def test_mixed_and_levelled_rows(dtype: torch.dtype, size: int) -> None:
    x, base = torch.randn(3, 5, size).to(dtype)[:, 1:4], torch.randn(3, 2, size).to(dtype)
    factors, weight = torch.randn(3, 2, 3).to(dtype), torch.randn(size).to(dtype)
    for given in ((x, factors), (x, factors, base, 1.0), (x, None, None, 1 / 3, weight)):
        close(ops.mix_rows(*given), reference.mix_rows(*given), dtype)
    for least in (1e-5, 1.5):
        expected = reference.match_rms(x[:, 0], base[:, 1], least)
        close(ops.match_rms(x[:, 0], base[:, 1], least), expected, dtype)
    expected = reference.keep_outliers(x[:, 1], 0.7)
    close(ops.keep_outliers(x[:, 1], 0.7, out=x[:, 1]), expected, dtype)
    close(x[:, 1], expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_sums(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 3, 1100).to(dtype)
    for other, scales in ((None, (24.0,)), (y, (0.5, 3.0)), (y, (0.22, -0.7))):
        ours = ops.scaled_add(x, other, *scales)
        close(ours, reference.scaled_add(x, other, *scales), dtype)
        close(ops.scaled_add(x, other, *scales, limit=0.5), ours.clamp(-0.5, 0.5), dtype)
    total = x + y
    close(ops.scaled_add(x, y, out=y), total, dtype)
    close(y, total, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("size", "rotated"), [(64, 64), (80, 32), (96, 96), (256, 128)])
def test_rotary(dtype: torch.dtype, is_neox: bool, size: int, rotated: int) -> None:
    qkv = torch.randn(5, (9 + 3) * size).to(dtype)
    positions = torch.tensor([3, 0, 49, 7, 7])
    table = torch.randn(50, rotated)
    results = []
    for implementation in (ops, reference):
        heads = qkv.clone().view(5, 12, size)
        query, key = heads[:, :9], heads[:, 9:]
        implementation.rotary_embedding(positions, query, key, table, is_neox)
        results.append(heads)
    close(*results, dtype)


@pytest.mark.parametrize("block_size", [8, 16, 128])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float16])
def test_cache_writes(block_size: int, cache_dtype: torch.dtype) -> None:
    key, value = torch.randn(2, 5, 3, 80)
    last = 4 * block_size - 1
    slots = torch.tensor([block_size + 1, -1, 3, last, block_size])
    results = []
    for implementation in (ops, reference):
        caches = torch.zeros(2, 4, 3, block_size, 80, dtype=cache_dtype)
        implementation.reshape_and_cache(key, value, caches[0], caches[1], slots)
        results.append(caches)
    assert torch.equal(*results)


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("size", [7, 80])
def test_8_bit_cache_writes(narrow: str, size: int) -> None:
    kind, scale_bytes = NARROW[narrow]
    sizes = torch.tensor([0.0, 1e-45, 1e-31, 1e-5, 1.0, 1e3, 1e6, 3e38, torch.inf, torch.nan])
    key, value = torch.rand(2, len(sizes), 3, size) * 2 - 1
    key, value = key * sizes[:, None, None], value * sizes.flip(0)[:, None, None]
    if scale_bytes:
        key[-2:], value[:2] = 1.0, 1.0  # which NaN a scale becomes is nobody's promise
    slots = torch.tensor([17, -1, 3, 63, 16, 40, 5, 6, 7, 8])
    results = []
    for implementation in (ops, reference):
        caches = torch.zeros(2, 4, 3, 16, size + scale_bytes, dtype=torch.uint8)
        implementation.reshape_and_cache(key, value, *caches.view(kind), slots)
        results.append(caches)
    assert torch.equal(*results)


@pytest.mark.parametrize("narrow", NARROW)
def test_attention_over_8_bit_caches(narrow: str) -> None:
    check(batch([(3, 40), (1, 70), (20, 20)], size=24, narrow=narrow))
    case = batch([(1, 40), (1, 90)], size=64, narrow=narrow)
    check(replace(case, sliding_window=33, soft_cap=2.0))


@pytest.mark.parametrize("size", [31, 32, 1500])
def test_token_masks(size: int) -> None:
    logits, rows = torch.randn(5, size), torch.tensor([3, 0])
    bits = torch.randint(-(2**31), 2**31 - 1, (2, -(-size // 32) + 1), dtype=torch.int32)
    results = []
    for implementation in (ops, reference):
        masked = logits.clone()
        implementation.apply_token_mask(masked, rows, bits)
        results.append(masked)
    assert torch.equal(*results) and torch.isinf(results[0]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(
    "lens",
    [
        [(1, 1)],
        [(1, 16), (1, 17), (1, 70)],
        [(5, 5), (1, 70), (17, 40), (0, 0), (2, 2)],
    ],
    ids=["one token", "decode", "mixed"],
)
def test_attention(lens: list[tuple[int, int]], size: int, dtype: torch.dtype) -> None:
    check(batch(lens, size=size, dtype=dtype))


@pytest.mark.parametrize("block_size", [8, 16, 32, 128])
@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 8), (7, 1), (40, 2)])
def test_attention_over_any_blocks_and_groups(heads: tuple[int, int], block_size: int) -> None:
    check(batch([(3, 2 * block_size), (1, block_size + 1)], heads, 16, block_size))


@pytest.mark.parametrize("window", [1, 9, 64, 65, 1000])
def test_attention_in_a_window(window: int) -> None:
    for lens in ([(1, 130), (1, 64)], [(70, 140), (1, 65), (3, 3)]):
        case = replace(batch(lens, size=16), sliding_window=window)
        check(case)
        check(replace(case, is_chunked=True))


def test_attention_with_soft_cap() -> None:
    check(replace(batch([(9, 40), (1, 7)], size=16), soft_cap=0.5))


def test_a_cache_may_be_of_another_type() -> None:
    check(batch([(4, 40), (1, 7)], size=16, cache_dtype=torch.bfloat16))


def test_blocks_may_lie_beyond_32_bits_of_offset() -> None:
    case = batch([(2, 24), (1, 9)], size=16, dtype=torch.float16)
    stride = 2**31 // (len(case.key_cache) - 1) + 16  # the last block lies beyond 2**31 elements
    wide = []
    for cache in (case.key_cache, case.value_cache):
        far = torch.empty(stride * len(cache), dtype=torch.float16)
        far = far.as_strided(cache.shape, (stride, *cache.stride()[1:]))
        wide.append(far.copy_(cache))
    check(replace(case, key_cache=wide[0], value_cache=wide[1]))


@pytest.mark.parametrize("lens", [[(1, 700), (1, 3)], [(1, 400), (1, 257), (1, 513)]])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 300}, {"soft_cap": 1.0}])
def test_a_split_context_gives_the_same(
    lens: list[tuple[int, int]], options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "processor_count", lambda _: 64)
    assert attention_splits.num_splits(len(lens) * 3, max(n for _, n in lens), 64) > 1
    check(replace(batch(lens, size=16), **options))  # type: ignore[arg-type]


def test_splits_fill_the_device_and_stay_long_enough() -> None:
    assert attention_splits.num_splits(132, 100_000, 132) == 1
    assert attention_splits.num_splits(8, 127, 132) == 1
    assert attention_splits.num_splits(8, 1024, 132) == 16
    assert attention_splits.num_splits(64, 8192, 132) == 6
    assert attention_splits.num_splits(1, 10**6, 132) == 32


def test_tiles_contain_whole_queries() -> None:
    cpu = torch.device("cpu")
    for group in (1, 2, 3, 7, 64, 71):
        for size in (8, 64, 80, 128, 256):
            for is_decode in (True, False):
                tiling = attention_splits.choose_tiling(group, size, is_decode, 2, cpu)
                assert tiling.block_q >= 1 and tiling.block_q * group <= tiling.block_m
                assert tiling.block_d >= size and math.log2(tiling.block_m).is_integer()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["installed", "3.6.0"])
def test_every_kernel_compiles_for_gpus_within_its_recorded_resources(
    version: str, tmp_path: Path
) -> None:
    """By the Triton that is here, if it has a record, and by the oldest that is supported."""
    own = ".".join(triton.__version__.split(".")[:2])
    record = ROOT / f"benchmarks/gpu/kernel_resources_{own}.json"
    if version == "installed" and not record.exists():
        pytest.skip(f"Triton {own} has no record")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if version != "installed":
        words = ["-m", "pip", "install", "--no-deps", "--target", tmp_path, f"triton=={version}"]
        if subprocess.run([sys.executable, *words], capture_output=True).returncode:
            pytest.skip(f"Triton {version} cannot be fetched")
        environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, ROOT / "benchmarks/gpu/kernel_resources.py", "--check"]
    command += ["--share", "8"]
    done = subprocess.run(
        command, env=environment | {"TRITON_DEFAULT_FP_FUSION": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


GENERATE = """
import sys
from vllm_lite import LLM, SamplingParams
llm = LLM(sys.argv[1], load_format="dummy", dtype="float32", skip_tokenizer_init=True, seed=3,
          max_num_batched_tokens=16, max_num_seqs=4, disable_frontend_multiprocessing=True)
prompts = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (1, 5, 17, 30)]
params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, detokenize=False)
print([output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)])
"""


def test_the_engine_gives_the_same_tokens_on_them(tmp_path: Path) -> None:
    from tests.checkpoints import write_hf

    model = write_hf(tmp_path / "tiny", max_position_embeddings=64)
    said = []
    for isa in ("auto", "triton"):
        environment = os.environ | {"VLLM_LITE_CPU_ISA": isa, "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, "-c", GENERATE, model]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(done.stdout)
    assert said[0] == said[1] and said[0].count("[") == 5
