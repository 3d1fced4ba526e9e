"""Selects the implementation of the operations that this process uses, once, at start.

`reference/ops.py` declares the operations. Knows no model and no layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from vllm_lite import envs
from vllm_lite.errors import UsageError
from vllm_lite.kernels.gpu.backends import gpu_ops
from vllm_lite.kernels.reference.ops import CpuOps, GpuOps, Ops

# `triton` runs the GPU's kernels in Triton's interpreter: slow, for tests.
ISA_CHOICES = (
    *("auto", "amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2"),
    *("neon_bf16", "portable"),
    *("reference", "triton"),
)

# Bytes that a thread reads at a time (csrc/cpu/memory.cpp), and bytes that are timed together.
READ_UNIT = 256 << 10
READ_PIECE = 16 << 20

# `Ops`, or a module that has the same functions.
_selected: Any = None
# Whether a row's results must not depend on the other rows of a batch.
_deterministic = False
# Name of `_selected` unless it is the compiled module; it then runs on torch's threads.
_plain_name: str | None = None


def ops() -> Ops:
    """The implementation that `select_ops` chose, by default the CPU's."""
    chosen: Ops = _selected if _selected is not None else select_ops("cpu")
    return chosen


def gpu_only_ops() -> GpuOps | None:
    """The selected implementation if it has the operations that only GPUs have, else None."""
    chosen: Any = ops()
    return chosen if hasattr(chosen, "scaled_linear") else None


def cpu_only_ops() -> CpuOps | None:
    """The selected implementation if it is the compiled kernels, else None."""
    chosen: Any = ops()
    return chosen if hasattr(chosen, "linear_argmax") else None


def select_ops(
    device_type: str = "cpu", attention_backend: str | None = None, deterministic: bool = False
) -> Any:
    """Choose the implementation for a device; VLLM_LITE_CPU_ISA forces one of ISA_CHOICES.

    Only GPUs have a choice of attention backends. Raises UsageError for an unknown device,
    backend or instruction set, for one that this machine lacks or that cannot be
    `deterministic` when asked to, and if the compiled module is missing.
    """
    global _selected, _plain_name, _deterministic
    _deterministic = deterministic
    if device_type == "cuda" and torch.cuda.is_available():
        _selected = gpu_ops(attention_backend, deterministic)
        _plain_name = attention_backend or "TRITON_ATTN"
        return _selected
    if device_type != "cpu":
        raise UsageError(f"torch can use no device {device_type!r} here; use --device cpu")
    isa = envs.VLLM_LITE_CPU_ISA.lower()
    if isa not in ISA_CHOICES:
        raise UsageError(
            f"VLLM_LITE_CPU_ISA={isa!r} is unknown; choose from {', '.join(ISA_CHOICES)}"
        )
    if deterministic and isa in ("reference", "triton"):
        raise UsageError(
            f"--deterministic (VLLM_BATCH_INVARIANT) cannot be kept with VLLM_LITE_CPU_ISA={isa}, "
            "where torch multiplies in an order that depends on the batch; unset one of them"
        )
    if isa == "reference":
        _selected, _plain_name = Ops, "reference (plain torch)"
    elif isa == "triton":
        _selected, _plain_name = _interpreted(), "Triton, interpreted"
    else:
        _selected, _plain_name = _compiled(isa), None
    return _selected


def is_deterministic() -> bool:
    """Whether a row's results must not depend on its batch, which rules out torch's matmul."""
    return _deterministic


def is_compiled() -> bool:
    """Whether the compiled kernels are selected."""
    ops()
    return _plain_name is None


def has_tiles() -> bool:
    """Whether the compiled kernels multiply bfloat16 on AMX tiles."""
    return is_compiled() and str(compiled().selected_isa()) == "amx"


def has_bfloat16_pairs() -> bool:
    """Whether the compiled kernels multiply bfloat16 inputs two at a time, grouped weights too."""
    return is_compiled() and str(compiled().selected_isa()) in ("amx", "avx512_bf16")


def set_num_threads(count: int) -> None:
    """Let the operations use `count` threads, including the calling one."""
    ops()
    if _plain_name is not None:
        torch.set_num_threads(count)
    else:
        compiled().set_num_threads(count)


def describe() -> str:
    """Describe the selection for the log: instruction set and number of threads."""
    ops()
    kept = ", deterministic" if _deterministic else ""
    if _plain_name is not None:
        return f"{_plain_name}, {torch.get_num_threads()} threads{kept}"
    module = compiled()
    return f"{module.selected_isa()}, {module.num_threads()} threads{kept}"


def read_bandwidth(tensors: Iterable[Tensor], max_seconds: float) -> float | None:
    """Bytes per second at which the threads read dense `tensors`, within `max_seconds`.

    Takes the upper quartile over pieces of READ_PIECE bytes: a busy machine slows some, a cache
    holds others. None without a whole piece or the compiled module.
    """
    ops()
    if _plain_name is not None:
        return None
    read_seconds = compiled().read_seconds
    speeds: list[float] = []
    num_bytes, seconds, left = 0, 0.0, max_seconds
    for tensor in tensors:
        if left <= 0:
            break
        for start in range(0, tensor.nbytes, READ_PIECE):
            size = min(tensor.nbytes - start, READ_PIECE)
            seconds += read_seconds(tensor.data_ptr() + start, size)
            num_bytes += size // READ_UNIT * READ_UNIT
            if num_bytes >= READ_PIECE:
                speeds.append(num_bytes / seconds)
                left -= seconds
                num_bytes, seconds = 0, 0.0
    return sorted(speeds)[len(speeds) * 3 // 4] if speeds else None


def _interpreted() -> Any:
    if not envs.TRITON_INTERPRET:
        raise UsageError("VLLM_LITE_CPU_ISA=triton needs TRITON_INTERPRET=1: there is no GPU here")
    try:
        return import_module("vllm_lite.kernels.gpu.triton.ops")
    except ImportError as error:
        raise UsageError(
            f"VLLM_LITE_CPU_ISA=triton needs Triton ({error}); run `pip install triton`"
        ) from None


def _compiled(isa: str) -> Any:
    module = compiled()
    supported = module.supported_isas()
    if isa == "auto":
        isa = supported[0]
    if isa not in supported:
        raise UsageError(
            f"VLLM_LITE_CPU_ISA={isa}: this machine only runs {', '.join(supported)}; unset it"
        )
    module.select_isa(isa)
    return import_module("vllm_lite.kernels.cpu.ops")


def compiled() -> Any:
    """The compiled kernels' module; raises UsageError where there is none."""
    try:
        import vllm_lite._cpu as _cpu
    except ImportError as error:
        raise UsageError(
            f"the compiled kernels cannot be loaded ({error}); run `pip install .` in the source "
            "tree, or set VLLM_LITE_CPU_ISA=reference for slow plain torch"
        ) from None
    return _cpu
