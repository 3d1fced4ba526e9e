"""Capabilities of the machine that the configuration depends on; plain OS reads only."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from vllm_lite import envs

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@cache
def cpu_flags(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """Feature flags of the first processor; empty where the system does not list them."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def has_native_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512-BF16, AMX or Arm BF16)."""
    return bool(_BF16_FLAGS & cpu_flags())


def has_cuda_device(devices: Path = Path("/dev")) -> bool:
    """Whether this process can open an NVIDIA GPU.

    The driver's files do not suffice: a container sees its host's without having the GPU.
    """
    return (devices / "dxg").exists() or any(devices.glob("nvidia[0-9]*"))


def cuda_obstacle() -> str | None:
    """The reason, with its fix, why a model cannot run on a GPU here; None if none is known.

    Torch is not imported; the driver is checked when torch is loaded.
    """
    if not has_cuda_device():
        return "this machine, or this container, has no NVIDIA GPU with a driver; give it one"
    if envs.CUDA_VISIBLE_DEVICES is not None and not _names_a_device(envs.CUDA_VISIBLE_DEVICES):
        return "CUDA_VISIBLE_DEVICES hides every GPU; unset it"
    if _torch_is_for_cpus():
        return (
            "the installed torch is a build for CPUs; install one for CUDA "
            "(https://pytorch.org/get-started/locally)"
        )
    if find_spec("triton") is None:
        return "the package triton is missing; run `pip install triton`"
    return None


def _names_a_device(visible: str) -> bool:
    # CUDA stops reading at the first entry that is not a device.
    first = visible.partition(",")[0].strip()
    return bool(first) and first != "-1"


@cache
def _torch_is_for_cpus() -> bool:
    """Reads the build of torch from its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return re.search(r"^cuda\b.*= *None", text, re.MULTILINE) is not None
