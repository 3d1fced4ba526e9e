"""AttentionConfig: which kernel computes attention, and what it needs of device and cache."""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import JsonOption, Option, config, option
from vllm_lite.errors import UsageError

# Names of --attention-backend for a GPU, the default first.
GPU_BACKENDS = ("TRITON_ATTN", "CUDA", "TORCH_SDPA", "FLASH_ATTN", "FLASHINFER")
# Caches that the attention of a backend does not read.
_SCALED_ROWS = ("int8", "int8_per_token_head", "fp8_per_token_head")
_ONE_BYTE = ("fp8", "fp8_e4m3", "fp8_e5m2", *_SCALED_ROWS)
_UNREAD = {
    "CUDA": ("float32", *_SCALED_ROWS),
    "TORCH_SDPA": _SCALED_ROWS,
    "FLASH_ATTN": ("float32", *_ONE_BYTE),
    "FLASHINFER": ("float32", *_ONE_BYTE),
}
# Where a backend has kernels for some sizes of heads only.
_HEAD_SIZES = {
    "CUDA": (64, 80, 96, 128, 256),
    "FLASH_ATTN": tuple(range(8, 257, 8)),
    "FLASHINFER": (64, 128, 256),
}
# The kernels of this package are made for blocks of so many tokens at most, flash-attn's for
# multiples of so many.
_LARGEST_BLOCK, _FLASH_ATTN_BLOCK = 128, 256


@config
class AttentionConfig:
    """The attention kernel."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("--attention-config")

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "attention_config", "JSON: the attention kernel and its settings.", ("-ac",)
    )

    backend: (
        Literal[
            "CPU_ATTN",
            "CUDA",
            "FLASH_ATTN",
            "FLASHINFER",
            "FLEX_ATTENTION",
            "TORCH_SDPA",
            "TRITON_ATTN",
            "XFORMERS",
        ]
        | None
    ) = option(
        None,
        "The kernel, by vLLM's name. On a GPU: TRITON_ATTN, the default; CUDA, this package's own "
        "for decode steps, if it was built; FLASH_ATTN and FLASHINFER, if the "
        "packages flash-attn and flashinfer-python are installed, the latter without graphs; "
        "TORCH_SDPA, slow and without graphs. On a CPU: CPU_ATTN.",
        alone="attention_backend",
        works=("CPU_ATTN", "TRITON_ATTN", "CUDA", "TORCH_SDPA", "FLASH_ATTN", "FLASHINFER"),
        remedy="use TRITON_ATTN, CUDA, FLASH_ATTN, FLASHINFER or TORCH_SDPA on a GPU and CPU_ATTN "
        "on a CPU",
    )


def check_device(
    device: str, attention: AttentionConfig, cache: CacheConfig, model: ModelConfig, head_size: int
) -> None:
    backend, on_cpu = attention.backend, device == "cpu"
    if on_cpu and backend in GPU_BACKENDS:
        raise UsageError(
            f"--attention-backend {backend} is for GPUs; leave it out, or add --device cuda"
        )
    if not on_cpu and model.enable_sleep_mode:
        raise UsageError(
            "--enable-sleep-mode: a GPU's memory cannot be given back here; leave it out, or use "
            "--device cpu"
        )
    if not on_cpu and backend == "CPU_ATTN":
        raise UsageError(
            f"--attention-backend CPU_ATTN is for CPUs; use {', '.join(GPU_BACKENDS)} or leave it "
            "out"
        )
    _check_block_size(backend, cache.block_size)
    if not on_cpu:
        _check_cache(backend or GPU_BACKENDS[0], cache.kv_cache_dtype, model.dtype, head_size)


def _check_cache(backend: str, numbers: str, dtype: str, head_size: int) -> None:
    if numbers == "auto":
        numbers = dtype
    if numbers in _UNREAD.get(backend, ()):
        raise UsageError(
            f"--attention-backend {backend} reads no cache of {numbers}; use TRITON_ATTN or "
            "another --kv-cache-dtype"
        )
    head_sizes = _HEAD_SIZES.get(backend)
    if head_sizes is None:
        return
    if dtype == "float32":
        raise UsageError(
            f"--attention-backend {backend} computes no --dtype float32; use TRITON_ATTN or "
            "bfloat16"
        )
    if head_size not in head_sizes:
        raise UsageError(
            f"--attention-backend {backend} has no kernel for heads of {head_size}; "
            f"its sizes are {', '.join(map(str, head_sizes))}; use TRITON_ATTN"
        )


def _check_block_size(backend: str | None, block_size: int) -> None:
    if backend == "FLASH_ATTN":
        if block_size % _FLASH_ATTN_BLOCK:
            raise UsageError(
                f"--attention-backend FLASH_ATTN reads no blocks of {block_size} tokens; add "
                f"--block-size {_FLASH_ATTN_BLOCK}"
            )
    elif block_size > _LARGEST_BLOCK:
        raise UsageError(
            f"--block-size {block_size} is for --attention-backend FLASH_ATTN; use at most "
            f"{_LARGEST_BLOCK}"
        )
