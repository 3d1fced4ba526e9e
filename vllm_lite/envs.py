"""Every environment variable that the package reads, typed, with its default.

The only module that touches `os.environ`. A value is read at each access
(`envs.VLLM_LOGGING_LEVEL`), so that tests and child processes see the current one.
"""

import os
import site
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from vllm_lite.errors import UsageError

# Type, value where it is not set, and what it does.
VLLM_API_KEY: Annotated[str | None, None, "Key that clients must send when --api-key is absent."]
VLLM_LOGGING_LEVEL: Annotated[str, "INFO", "Level of the vllm_lite logger; default INFO."]
VLLM_CONFIGURE_LOGGING: Annotated[
    bool, True, "0 leaves Python's logging as the application set it."
]
VLLM_LOGGING_CONFIG_PATH: Annotated[str | None, None, "A JSON file for logging.config.dictConfig."]
VLLM_LOG_STATS_INTERVAL: Annotated[float, 10.0, "Seconds between two throughput lines; default 10."]
VLLM_CACHE_ROOT: Annotated[
    str, None, "Where the demo model and other derived files are kept; default ~/.cache/vllm-lite."
]
VLLM_ENGINE_READY_TIMEOUT_S: Annotated[
    int, 600, "Seconds the server waits for the engine core to be ready; default 600."
]
VLLM_HTTP_TIMEOUT_KEEP_ALIVE: Annotated[
    int, 5, "Seconds an idle HTTP connection is kept; default 5."
]
VLLM_ALLOW_LONG_MAX_MODEL_LEN: Annotated[
    bool, False, "1 permits --max-model-len beyond what the checkpoint was made for."
]
VLLM_ENABLE_V1_MULTIPROCESSING: Annotated[
    bool, True, "0 runs the engine core inside the LLM class's own process."
]
VLLM_BATCH_INVARIANT: Annotated[bool, False, "1 is --deterministic, where that is not given."]
VLLM_CPU_KVCACHE_SPACE: Annotated[
    float | None, None, "GiB of KV cache on CPU; overrides --gpu-memory-utilization there."
]
VLLM_CPU_NUM_THREADS: Annotated[
    int | None, None, "Compute threads on CPU; default: the physical cores this process may use."
]
VLLM_CPU_OMP_THREADS_BIND: Annotated[
    str,
    "auto",
    "CPUs that the engine core may use, such as 0-3,6, or each of its ranks, with | between; "
    "default auto: those of its parent.",
]
VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: Annotated[
    int | None,
    None,
    "Seconds after which a step that still computes counts as stuck; default: six times the "
    "processor time that the largest step should take, and at most 300 s. On a CPU one that "
    "does not compute counts as stuck within ten.",
]
VLLM_MAX_N_SEQUENCES: Annotated[int, 64, "The largest n a request may ask for; default 64."]
VLLM_ENABLE_RESPONSES_API_STORE: Annotated[
    bool, True, "0 forgets the replies of /v1/responses as soon as they are sent."
]
VLLM_SERVER_DEV_MODE: Annotated[
    bool, False, "1 adds the routes that pause, abort and inspect the engine."
]
VLLM_LITE_CPU_ISA: Annotated[
    str,
    "auto",
    "auto, amx, avx512_bf16, avx512_vnni, avx512, avx2, neon_bf16, portable, reference or triton "
    "(the GPU's kernels, interpreted): forces one kernel path on CPU.",
]
TRITON_INTERPRET: Annotated[
    bool, False, "Triton's own: 1 runs its kernels without a GPU, one operation after another."
]
CUDA_VISIBLE_DEVICES: Annotated[
    str | None, None, "CUDA's own: the GPUs that a process sees; an engine runs on the first."
]
OPENAI_API_KEY: Annotated[
    str | None, None, "Key that `chat` and `complete` send when --api-key is absent."
]
OTEL_SERVICE_NAME: Annotated[str, "vllm-lite", "OpenTelemetry's own: the service of the spans."]
OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: Annotated[
    str, "grpc", "OpenTelemetry's own: how spans are sent, grpc or http/protobuf."
]
NO_COLOR: Annotated[str | None, None, "Set to anything: no colours in the log."]
HF_HUB_OFFLINE: Annotated[bool, False, "huggingface_hub's own: no network."]
HF_TOKEN: Annotated[str | None, None, "huggingface_hub's own: access token."]

VARIABLES = get_type_hints(sys.modules[__name__], include_extras=True)


def help_of(name: str) -> str:
    """The use of a variable, in a line."""
    return str(VARIABLES[name].__metadata__[1])


def __getattr__(name: str) -> Any:
    if name not in VARIABLES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raw = os.environ.get(name)
    if name == "VLLM_CACHE_ROOT":
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return os.path.expanduser(raw or os.path.join(base, "vllm-lite"))
    if name == "CUDA_VISIBLE_DEVICES":
        return raw  # set and empty is a choice too: no GPU
    if not raw:
        return VARIABLES[name].__metadata__[0]
    hint = VARIABLES[name].__origin__
    kind = (get_args(hint) or (hint,))[0]
    if kind is bool:
        return raw.strip().lower() not in ("0", "false", "no", "off")
    try:
        return kind(raw)
    except ValueError:
        raise UsageError(f"{name}={raw!r} is not a number; set it to one or unset it") from None


def __dir__() -> list[str]:
    return sorted(VARIABLES)


def give(name: str, value: str, *, is_default: bool = False) -> None:
    """Set a variable for a package that reads its settings there; a default yields to what is."""
    if not is_default or name not in os.environ:
        os.environ[name] = value


# vLLM's, and why they change nothing here.
IDLE = {
    "VLLM_HOST_IP": "an engine runs on one machine",
    "VLLM_PORT": "the processes of a server talk over unix sockets",
    "VLLM_USE_MODELSCOPE": "models come from disk or from the Hugging Face hub",
    "VLLM_WORKER_MULTIPROC_METHOD": "the engine core is always a new process, never a fork",
    "VLLM_PLUGINS": "of plugins only the one that --io-processor-plugin names is loaded",
    "VLLM_DISABLE_COMPILE_CACHE": "nothing is compiled",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "there are no adapters",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a server whose engine is dead ends",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "use --enable-log-requests and --enable-log-outputs",
    "VLLM_ATTENTION_BACKEND": "use --attention-backend",
    "VLLM_USE_V1": "there is one engine",
    "VLLM_TARGET_DEVICE": "the device is found out; see --device",
}
# They ask for what holds anyway: their use is not logged.
GRANTED = ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK")


def complaints() -> list[str]:
    """A line for each variable that is set to something and changes nothing."""
    lines = [
        f"{name} changes nothing here: {why}"
        for name, why in IDLE.items()
        if os.environ.get(name, "") not in ("", "0")
    ]
    known = {*VARIABLES, *IDLE, *GRANTED}
    unknown = [name for name in sorted(os.environ) if name.startswith("VLLM_")]
    unknown = [name for name in unknown if name not in known]
    if unknown:
        lines.append(f"Unknown environment variables, without effect: {', '.join(unknown)}")
    return lines


# Prefixes of variables that change how this package or a library behaves.
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


def module_environment(**extra: str) -> dict[str, str]:
    """child_environment() in which `python -P -m vllm_lite...` finds this package."""
    environment = child_environment(**extra)
    # -P keeps the current directory off the child's path; the package itself must stay on it.
    root = str(Path(__file__).resolve().parents[1])
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{inherited}" if inherited else root
    return environment


def let_openmp_sleep() -> None:
    """Make torch's idle OpenMP threads spin for microseconds, not milliseconds, then sleep.

    By default they spin until work comes, and on a machine whose cores are wanted elsewhere a
    step then waits for whole time slices. Has no effect once torch is loaded; a choice of the
    user's own stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
