"""What the machine can do, as far as the configuration depends on it; plain OS reads only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_CUDA_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")


@cache
def cpu_flags(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """Feature flags of the first processor; empty where the system does not tell."""
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


def has_cuda_device() -> bool:
    """Whether an NVIDIA driver is present."""
    return any(Path(sign).exists() for sign in _CUDA_SIGNS)
