"""Selects the operations of an NVIDIA GPU by the name that --attention-backend gives.

Imports a backend only when it is selected.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from vllm_lite.config.attention import GPU_BACKENDS
from vllm_lite.errors import UsageError

# Modules whose `operations()` replace Triton's.
_MODULES = {
    "CUDA": "cuda.ops",
    "TORCH_SDPA": "sdpa",
    "FLASH_ATTN": "flash_attention",
    "FLASHINFER": "flashinfer_attention",
}
# What to do if a backend cannot be imported.
_FIXES = {
    "CUDA": "build it with `pip install . -C cmake.define.VLLM_LITE_CUDA=ON`, which needs nvcc",
    "FLASH_ATTN": "run `pip install flash-attn`, or leave the option out",
    "FLASHINFER": "run `pip install flashinfer-python`, or leave the option out",
}


def gpu_ops(backend: str | None, deterministic: bool = False) -> Any:
    """The operations of `backend`, or of the default; raises UsageError.

    They are Triton's except for those that the backend replaces. If `deterministic`, attention
    gives a token the same bits in any batch.
    """
    name = backend or GPU_BACKENDS[0]
    if name not in GPU_BACKENDS:
        raise UsageError(
            f"--attention-backend {name} has no kernels in this build; "
            f"use {', '.join(GPU_BACKENDS)} or leave it out"
        )
    if deterministic and name != GPU_BACKENDS[0]:
        raise UsageError(
            f"--deterministic (VLLM_BATCH_INVARIANT) cannot be kept by --attention-backend {name}, "
            "which attends to prompts and to single tokens in different orders; use "
            f"{GPU_BACKENDS[0]}"
        )
    try:
        triton, tuning = _import("triton.ops"), _import("tuning")
    except ImportError as error:
        raise UsageError(
            f"--attention-backend {name} cannot be used ({error}); run `pip install triton`"
        ) from None
    try:
        own = _import(_MODULES[name]).operations() if name in _MODULES else {}
    except ImportError as error:
        raise UsageError(
            f"--attention-backend {name} cannot be used ({error}); {_FIXES[name]}"
        ) from None
    tuning.fix_cuts(deterministic)
    return SimpleNamespace(**(vars(triton) | own))


def fixed_product() -> Any:
    """`fixed_linear` on a GPU, whose results do not depend on the batch."""
    return _import("triton.products.linear").fixed_linear


def _import(module: str) -> Any:
    return import_module(f"vllm_lite.kernels.gpu.{module}")
