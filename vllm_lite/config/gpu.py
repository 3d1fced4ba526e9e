"""What a configuration for a GPU may ask for, and one for a CPU may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_lite.config.graphs import capture_sizes
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

# Names of --attention-backend for a GPU, the default first.
GPU_BACKENDS = ("TRITON_ATTN", "CUDA", "TORCH_SDPA")
# Caches that the attention of a backend does not read.
_UNREAD = {
    "CUDA": ("float32", "int8", "int8_per_token_head", "fp8_per_token_head"),
    "TORCH_SDPA": ("int8", "int8_per_token_head", "fp8_per_token_head"),
}
_CUDA_HEAD_SIZES = (64, 80, 96, 128, 256)


def check_device(config: VllmConfig) -> None:
    """Raise UsageError for what the configuration's device cannot do."""
    backend = config.attention.backend
    if config.device == "cpu":
        if backend in GPU_BACKENDS:
            raise UsageError(
                f"--attention-backend {backend} is for GPUs; leave it out, or add --device cuda"
            )
        return
    if backend == "CPU_ATTN":
        raise UsageError(
            f"--attention-backend CPU_ATTN is for CPUs; use {', '.join(GPU_BACKENDS)} or leave it "
            "out"
        )
    _check_cache(config, backend or GPU_BACKENDS[0])
    capture_sizes(config)


def _check_cache(config: VllmConfig, backend: str) -> None:
    numbers = config.cache.kv_cache_dtype
    if numbers == "auto":
        numbers = config.model.dtype
    if numbers in _UNREAD.get(backend, ()):
        raise UsageError(
            f"--attention-backend {backend} reads no cache of {numbers}; use TRITON_ATTN or "
            "another --kv-cache-dtype"
        )
    if backend != "CUDA":
        return
    if config.model.dtype == "float32":
        raise UsageError(
            "--attention-backend CUDA computes no --dtype float32; use TRITON_ATTN or bfloat16"
        )
    if config.facts.head_size not in _CUDA_HEAD_SIZES:
        raise UsageError(
            f"--attention-backend CUDA has no kernel for heads of {config.facts.head_size}; its "
            f"sizes are {', '.join(map(str, _CUDA_HEAD_SIZES))}; use TRITON_ATTN"
        )
