"""csrc/cuda on the machine that has the GPU: built by nvcc alone, called by way of ctypes.

The compiled module of an installed package is taken where there is one.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from measure.place import Place, say

CSRC = Path(__file__).parents[3] / "csrc"
SOURCES = ("calls.cpp", "decode_bfloat16.cu", "decode_half.cu")


class CudaLibrary:
    """Has the function of vllm_lite._cuda."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.attend = _caller(library["vllm_lite_cuda_attend"])


def _caller(function: Any) -> Any:
    function.restype = ctypes.c_char_p
    types = {int: ctypes.c_int64, float: ctypes.c_double}

    def call(*numbers: float) -> str | None:
        failure: bytes | None = function(*(types[type(number)](number) for number in numbers))
        return failure.decode() if failure else None

    return call


def library_path(folder: Path, arch: str) -> Path:
    """Path of the build for `arch` of the current sources."""
    digest = hashlib.sha256(arch.encode())
    for path in sorted((CSRC / "cuda").rglob("*.*")):
        digest.update(path.read_bytes())
    return folder / f"cuda_{arch}_{digest.hexdigest()[:16]}.so"


def build(folder: Path, arch: str) -> Path:
    """Compile and link, a minute or two; raises RuntimeError with the compiler's complaint."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("nvcc is not on the path; it comes with the CUDA toolkit")
    library = library_path(folder, arch)
    if library.exists():
        return library
    common = [nvcc, "-std=c++17", "-O3", f"-arch={arch}", "-Xcompiler=-fPIC", f"-I{CSRC}"]

    def compile_one(source: str) -> str:
        target = str(folder / f"{source}.o")
        _run([*common, "-c", str(CSRC / "cuda" / source), "-o", target])
        return target

    with ThreadPoolExecutor(len(SOURCES)) as pool:
        objects = list(pool.map(compile_one, SOURCES))
    unfinished = library.with_suffix(".unfinished")
    _run([*common, "-shared", *objects, "-o", str(unfinished)])
    unfinished.replace(library)
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")


def device_arch() -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def install(library: Path) -> None:
    """Let `import vllm_lite._cuda` find `library` in this process."""
    module: Any = CudaLibrary(library)
    sys.modules["vllm_lite._cuda"] = module


def cuda_operations(place: Place) -> Any:
    """csrc/cuda's attention as the engine calls it; None where it is not built."""
    if place.is_dry:
        return None
    library = library_path(place.folder, device_arch())
    if "vllm_lite._cuda" not in sys.modules and library.exists():
        install(library)
    try:
        from vllm_lite.kernels.gpu.cuda import ops
    except ImportError as error:
        say(f"csrc/cuda is not measured: {error}")
        return None
    return ops
