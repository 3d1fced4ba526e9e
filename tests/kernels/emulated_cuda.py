"""The CUDA kernels compiled for the host with tests/csrc/cuda/emulation, called by ctypes.

For tests only. A build is reused until the sources change.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
EMULATION = Path(__file__).parents[1] / "csrc"
SOURCES = ("calls.cpp", "decode_half.cu", "decode_bfloat16.cu")
OPTIONS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
COMPILERS = ("g++", "c++", "clang++")


class EmulatedCuda:
    """The function of vllm_lite._cuda; `stream` is ignored and calls are synchronous."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def attend(self, *numbers: float) -> str | None:
        function = self._library["vllm_lite_cuda_attend"]
        function.restype = ctypes.c_char_p
        types = {int: ctypes.c_int64, float: ctypes.c_double}
        failure: bytes | None = function(*(types[type(number)](number) for number in numbers))
        return failure.decode() if failure else None

    def run_backwards(self, is_wanted: bool) -> None:
        """Set whether the last threads of a block run first."""
        self._library["vllm_lite_run_backwards"](ctypes.c_int64(is_wanted))


def compiler() -> str | None:
    """A C++ compiler of this machine."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def build() -> EmulatedCuda:
    """Compile the kernels, which takes seconds."""
    digest = hashlib.sha256(repr((compiler(), OPTIONS)).encode())
    for path in sorted([*(CSRC / "cuda").rglob("*.*"), *(EMULATION / "cuda").rglob("*.*")]):
        digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"vllm-lite-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest.hexdigest()[:24]}.so"
    if not library.exists():
        unfinished = library.with_suffix(f".{os.getpid()}")
        sources = [str(CSRC / "cuda" / name) for name in SOURCES]
        command = [str(compiler()), *OPTIONS, "-DVLLM_LITE_EMULATED"]
        command += [f"-I{CSRC}", f"-I{EMULATION}"]
        command += ["-fPIC", "-shared", "-fvisibility=hidden", "-x", "c++", *sources]
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.replace(library)
    return EmulatedCuda(library)
