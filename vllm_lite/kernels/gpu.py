"""Which operations an NVIDIA GPU gets, by the name that --attention-backend gives.

Imports a backend when it is asked for, and no sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vllm_lite.errors import UsageError

# vLLM's names, and CUDA for this package's own kernels; the first is the default.
_MODULES = {
    "TRITON_ATTN": "vllm_lite.kernels.triton.ops",
    "CUDA": "vllm_lite.kernels.cuda.ops",
    "TORCH_SDPA": "vllm_lite.kernels.sdpa",
}
_BUILD = "build it with `pip install . -C cmake.define.VLLM_LITE_CUDA=ON`, which needs nvcc"


def gpu_ops(backend: str | None) -> Any:
    """The operations (dispatch.Ops) of `backend`, or of the default; raises UsageError."""
    name = backend or next(iter(_MODULES))
    if name not in _MODULES:
        raise UsageError(
            f"--attention-backend {name} has no kernels in this build; "
            f"use {', '.join(_MODULES)} or leave it out"
        )
    try:
        return import_module(_MODULES[name])
    except ImportError as error:
        fix = _BUILD if "_cuda" in str(error) else "run `pip install triton`"
        raise UsageError(f"--attention-backend {name} cannot be used ({error}); {fix}") from None
