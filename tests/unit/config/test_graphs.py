"""Which decode steps of a GPU are captured, and what a GPU's configuration may not ask for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import core_config
from vllm_lite.config.compilation import CompilationConfig
from vllm_lite.errors import UsageError


def sizes(compilation: dict[str, Any] | None = None, **options: Any) -> tuple[int, ...]:
    config = core_config(**{"max_num_seqs": 100, **options})
    object.__setattr__(config, "compilation", CompilationConfig(**(compilation or {})))
    return config.capture_sizes


def test_sizes_reach_to_the_largest_batch_and_no_further() -> None:
    assert sizes() == (1, 2, 4, *range(8, 97, 8), 100)
    assert sizes(max_num_seqs=3) == (1, 2, 3)
    many = sizes(max_num_seqs=1000, max_num_batched_tokens=1000)
    assert many == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def test_sizes_are_those_given() -> None:
    assert sizes({"cudagraph_capture_sizes": [8, 2, 2]}) == (2, 8)
    assert sizes({"cudagraph_capture_sizes": []}) == ()
    assert sizes({"max_cudagraph_capture_size": 10}) == (1, 2, 4, 8, 10)
    assert sizes({"max_cudagraph_capture_size": 0}) == ()
    with pytest.raises(UsageError, match="--cudagraph-capture-sizes must be at least 1"):
        sizes({"cudagraph_capture_sizes": [0, 4]})
    with pytest.raises(UsageError, match="--max-cudagraph-capture-size 9 is not the largest"):
        sizes({"cudagraph_capture_sizes": [4, 8], "max_cudagraph_capture_size": 9})


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_what_is_captured_follows_the_mode_before_the_level(mode: str) -> None:
    assert sizes({"cudagraph_mode": mode}, optimization_level=0) == sizes()
    assert sizes({"use_cudagraph": True}, optimization_level=0) == sizes()
    assert sizes({"cudagraph_mode": "NONE"}, optimization_level=3) == ()
    assert sizes({"use_cudagraph": False}) == ()


def test_levels_capture_or_not() -> None:
    assert sizes(optimization_level=0) == ()
    assert sizes(optimization_level=1) == sizes(optimization_level=3) == sizes()
    assert sizes(enforce_eager=True) == ()


def test_pieces_are_refused() -> None:
    with pytest.raises(UsageError, match=r"PIECEWISE is not available.*FULL_DECODE_ONLY"):
        sizes({"cudagraph_mode": "PIECEWISE"})


def on_gpu(**options: Any) -> Any:
    return core_config(device="cuda", **options)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"backend": "CPU_ATTN"}, "--attention-backend CPU_ATTN is for CPUs"),
        ({"backend": "CUDA", "dtype": "bfloat16"}, "no kernel for heads of 8"),
        ({"backend": "CUDA", "dtype": "float32"}, "reads no cache of float32"),
        ({"backend": "TORCH_SDPA", "kv_cache_dtype": "int8"}, "reads no cache of int8"),
        ({"backend": "FLASH_ATTN"}, "FLASH_ATTN reads no blocks of 8 .*--block-size 256"),
        ({"backend": "FLASH_ATTN", "block_size": 256, "dtype": "float32"}, "no cache of float32"),
        ({"backend": "FLASHINFER", "kv_cache_dtype": "fp8"}, "FLASHINFER reads no cache of fp8"),
        ({"backend": "FLASHINFER", "dtype": "float16"}, "FLASHINFER has no kernel for heads of 8"),
        ({"block_size": 256}, "--block-size 256 is for --attention-backend FLASH_ATTN"),
        ({"backend": "XFORMERS"}, "XFORMERS is not available.*TRITON_ATTN"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused_by_option(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        on_gpu(**options)
    assert "\n" not in str(caught.value)


def test_a_backend_chooses_kernels_and_whether_there_are_graphs() -> None:
    assert on_gpu(backend="TRITON_ATTN", dtype="float16").capture_sizes == (1, 2, 4, 8)
    assert on_gpu(backend="TORCH_SDPA", dtype="float16").capture_sizes == ()
    with pytest.raises(UsageError, match="--attention-backend TRITON_ATTN is for GPUs"):
        core_config(backend="TRITON_ATTN")
