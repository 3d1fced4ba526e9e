"""Every environment variable that the package reads, typed, with its default.

The only module that touches `os.environ`. A value is read at each access
(`envs.VLLM_LOGGING_LEVEL`), so that tests and child processes see the current one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    VLLM_API_KEY: str | None
    VLLM_LOGGING_LEVEL: str
    VLLM_CONFIGURE_LOGGING: bool
    VLLM_LOGGING_CONFIG_PATH: str | None
    VLLM_LOG_STATS_INTERVAL: float
    VLLM_CACHE_ROOT: str
    VLLM_ENGINE_READY_TIMEOUT_S: int
    VLLM_HTTP_TIMEOUT_KEEP_ALIVE: int
    VLLM_ALLOW_LONG_MAX_MODEL_LEN: bool
    VLLM_ENABLE_V1_MULTIPROCESSING: bool
    VLLM_CPU_KVCACHE_SPACE: float | None
    VLLM_CPU_NUM_THREADS: int | None
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: int
    VLLM_MAX_N_SEQUENCES: int
    VLLM_LITE_CPU_ISA: str
    OPENAI_API_KEY: str | None
    HF_HUB_OFFLINE: bool
    HF_TOKEN: str | None


def _text(name: str, default: str) -> Callable[[], str]:
    return lambda: os.environ.get(name) or default


def _optional_text(name: str) -> Callable[[], str | None]:
    return lambda: os.environ.get(name) or None


def _parse(name: str, kind: type, default: Any) -> Callable[[], Any]:
    def read() -> Any:
        raw = os.environ.get(name)
        if not raw:
            return default
        try:
            return kind(raw)
        except ValueError:
            raise UsageError(f"{name}={raw!r} is not a number; set it to one or unset it") from None

    return read


def _flag(name: str, default: bool) -> Callable[[], bool]:
    def read() -> bool:
        raw = os.environ.get(name)
        return default if not raw else raw.strip().lower() not in ("0", "false", "no", "off")

    return read


_VARIABLES: dict[str, Callable[[], Any]] = {
    # Key that clients must send when --api-key is absent.
    "VLLM_API_KEY": _optional_text("VLLM_API_KEY"),
    # Level of the vllm_lite logger.
    "VLLM_LOGGING_LEVEL": _text("VLLM_LOGGING_LEVEL", "INFO"),
    # 0 leaves Python's logging as the application set it.
    "VLLM_CONFIGURE_LOGGING": _flag("VLLM_CONFIGURE_LOGGING", True),
    # A JSON file for logging.config.dictConfig.
    "VLLM_LOGGING_CONFIG_PATH": _optional_text("VLLM_LOGGING_CONFIG_PATH"),
    # Seconds between two throughput lines.
    "VLLM_LOG_STATS_INTERVAL": _parse("VLLM_LOG_STATS_INTERVAL", float, 10.0),
    # Where the demo model and other derived files are kept.
    "VLLM_CACHE_ROOT": lambda: os.path.expanduser(
        os.environ.get("VLLM_CACHE_ROOT")
        or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "vllm-lite")
    ),
    # Seconds the server waits for the engine core to be ready.
    "VLLM_ENGINE_READY_TIMEOUT_S": _parse("VLLM_ENGINE_READY_TIMEOUT_S", int, 600),
    # Seconds an idle HTTP connection is kept.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": _parse("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", int, 5),
    # 1 permits --max-model-len beyond what the checkpoint was made for.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": _flag("VLLM_ALLOW_LONG_MAX_MODEL_LEN", False),
    # 0 runs the engine core inside the LLM class's own process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": _flag("VLLM_ENABLE_V1_MULTIPROCESSING", True),
    # GiB of KV cache on CPU; overrides --gpu-memory-utilization there.
    "VLLM_CPU_KVCACHE_SPACE": _parse("VLLM_CPU_KVCACHE_SPACE", float, None),
    # Compute threads on CPU; default: the physical cores this process may use.
    "VLLM_CPU_NUM_THREADS": _parse("VLLM_CPU_NUM_THREADS", int, None),
    # Seconds after which a step that has not returned counts as stuck.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": _parse("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", int, 300),
    # The largest n a request may ask for.
    "VLLM_MAX_N_SEQUENCES": _parse("VLLM_MAX_N_SEQUENCES", int, 64),
    # auto, avx512, avx2, portable or reference: forces one CPU kernel path.
    "VLLM_LITE_CPU_ISA": _text("VLLM_LITE_CPU_ISA", "auto"),
    # Key that `chat` and `complete` send when --api-key is absent.
    "OPENAI_API_KEY": _optional_text("OPENAI_API_KEY"),
    # huggingface_hub's own: no network.
    "HF_HUB_OFFLINE": _flag("HF_HUB_OFFLINE", False),
    # huggingface_hub's own: access token.
    "HF_TOKEN": _optional_text("HF_TOKEN"),
}


def __getattr__(name: str) -> Any:
    if name in _VARIABLES:
        return _VARIABLES[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_VARIABLES)


# What can change how this package or a library below it behaves; others are nobody's business.
_REPORTED = (
    "VLLM_",
    "TORCH",
    "PYTORCH_",
    "CUDA",
    "NVIDIA_",
    "NCCL_",
    "HF_",
    "HUGGING_FACE_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "ONEDNN_",
    "DNNL_",
    "OPENAI_",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)


def reported() -> dict[str, str]:
    """The variables that a report of a problem should name, in order; some may be secrets."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_REPORTED)}


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a child process: this one's plus `extra`."""
    return {**os.environ, **extra}


def let_openmp_sleep() -> None:
    """Make torch's idle OpenMP threads spin for microseconds, not milliseconds, then sleep.

    By default they spin until work comes, and on a machine whose cores are wanted elsewhere a
    step then waits for whole time slices. Has no effect once torch is loaded; a choice of the
    user's own stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
