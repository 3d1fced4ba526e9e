"""vllm_lite: a small, fast, faithful engine for serving language models.

The public names are imported when they are first used, so that `import vllm_lite` costs
nothing and never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vllm_lite import envs

if TYPE_CHECKING:
    from vllm_lite.config.engine_args import AsyncEngineArgs, EngineArgs
    from vllm_lite.engine.front.async_llm import AsyncLLM
    from vllm_lite.llm import LLM
    from vllm_lite.outputs import CompletionOutput, RequestOutput
    from vllm_lite.pooling_params import PoolingParams
    from vllm_lite.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_MODULES = {
    "LLM": "vllm_lite.llm",
    "AsyncLLM": "vllm_lite.engine.front.async_llm",
    "AsyncEngineArgs": "vllm_lite.config.engine_args",
    "EngineArgs": "vllm_lite.config.engine_args",
    "CompletionOutput": "vllm_lite.outputs",
    "PoolingParams": "vllm_lite.pooling_params",
    "RequestOutput": "vllm_lite.outputs",
    "SamplingParams": "vllm_lite.sampling_params",
}


# Here, because OpenMP reads its settings when torch is loaded.
envs.let_openmp_sleep()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
