"""AMX kernels built separately: on a tile unit in plain C++, or with real instructions.

`plain` compiles the kernels against tests/csrc/cpu/emulation/tile_unit.h, for the best instruction
set of this machine; `trapped` compiles them as _cpu does, and a signal handler emulates
instructions that the processor lacks. A build is reused until the sources change.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.config.machine import cpu_flags
from vllm_lite.kernels.cpu.calls import calls

CSRC = Path(__file__).parents[2] / "csrc"
EMULATION = Path(__file__).parents[1] / "csrc"
INCLUDES = (f"-I{CSRC}", f"-I{EMULATION}")
# Which takes float32 rows from the level avx512, where there is one.
GROUPED = "kernels/grouped_linear.cpp"
FILES = (
    *(
        "attention.cpp",
        "grouped.cpp",
        "ops.cpp",
        "quantized.cpp",
        "row_operations.cpp",
        "thread_pool.cpp",
    ),
    *("kernels/attention.cpp", "kernels/linear.cpp"),
    GROUPED,
    *("kernels/amx/linear.cpp", "kernels/amx/check.cpp"),
)
OPTIONS = (
    *("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"),
    # GCC 12 warns of its own header's undefined vectors.
    *("-Wno-maybe-uninitialized", "-Wno-uninitialized"),
)
# As in csrc/CMakeLists.txt.
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
FLAGS = {
    "portable": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_vnni": (*AVX512, "-mavx512vnni"),
    "avx512_bf16": (*AVX512, "-mavx512vnni", "-mavx512bf16"),
}
TILES = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
# The last fields of a call that may be left out, at most: bindings.cpp, `define`.
MOST_LEFT_OUT = 3
COMPILERS = ("g++", "c++", "clang++")


class EmulatedTiles:
    """Replaces _cpu's linear layers and attention, with as many threads."""

    def __init__(self, library: Path, is_trapped: bool) -> None:
        self._library = ctypes.CDLL(str(library))
        self.is_trapped = is_trapped
        self.num_trapped = 0

    def linear(self, *fields: Any) -> None:
        self._call("linear", *fields)

    def gated_linear(self, *fields: Any) -> None:
        self._call("gated_linear", *fields)

    def activation(self, *fields: Any) -> None:
        _cpu.activation(*fields)

    def quantized_linear(self, *fields: Any) -> None:
        _cpu.quantized_linear(*fields)

    def grouped_linear(self, *fields: Any) -> None:
        self._call("grouped_linear", *fields)

    def paged_attention(self, *fields: Any) -> None:
        self._call("paged_attention", *fields)

    def encoder_attention(self, *fields: Any) -> None:
        self._call("encoder_attention", *fields)

    def multiply_rightly(self) -> bool:
        return bool(self._call("tiles_multiply_rightly"))

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Run linear layers and attention of vllm_lite.kernels.cpu.ops here."""
        token = calls.set(self)
        try:
            yield
        finally:
            calls.reset(token)

    def _call(self, name: str, *fields: Any) -> int:
        self._run("set_num_threads", _cpu.num_threads())
        if not self.is_trapped:
            return self._run(name, *fields)
        self._run("trap_tiles")
        try:
            return self._run(name, *fields)
        finally:
            self.num_trapped += self._run("release_trap")

    def _run(self, name: str, *fields: Any) -> int:
        function = self._library[f"vllm_lite_{name}"]
        function.restype = ctypes.c_int64
        # Fields that may be left out are zero, as where _cpu is called.
        words = (ctypes.c_int64 * (len(fields) + MOST_LEFT_OUT))(*map(_in_one_word, fields))
        return int(function(words))


def _in_one_word(field: Any) -> int:
    """An integer, an address, or the bits of a float32."""
    if isinstance(field, Tensor):
        return field.data_ptr()
    if isinstance(field, float):
        return int.from_bytes(struct.pack("<f", field), "little")
    return int(field or 0)


def compiler() -> str | None:
    """A C++ compiler of this machine."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def base_isa() -> str:
    """The plain build's instruction set: that with most instructions of this machine below AMX."""
    return max(set(_cpu.supported_isas()) & set(FLAGS), key=list(FLAGS).index)


def kinds() -> list[str]:
    """The kinds of builds that run on this machine."""
    if compiler() is None:
        return []
    # A processor with tiles would not trap the instructions.
    can_trap = base_isa() == "avx512_bf16" and "amx_tile" not in cpu_flags()
    return ["plain", "trapped"] if can_trap else ["plain"]


def can_use_real() -> bool:
    """Whether `real_tiles` finds instructions to run: the processor's, or those a handler runs."""
    return "amx" in _cpu.supported_isas() or "trapped" in kinds()


@contextmanager
def real_tiles() -> Iterator[None]:
    """Run linear layers and attention by tile instructions: the processor's where it has them."""
    if "amx" not in _cpu.supported_isas():
        with build("trapped").chosen():
            yield
        return
    before = _cpu.selected_isa()
    _cpu.select_isa("amx")
    try:
        yield
    finally:
        _cpu.select_isa(before)


@functools.cache
def build(kind: str) -> EmulatedTiles:
    """Compile the kernels, which takes some seconds."""
    is_trapped = kind == "trapped"
    own = ["calls.cpp", "trap.cpp"] if is_trapped else ["calls.cpp"]
    options = [*OPTIONS, *FLAGS[base_isa()], "-DVLLM_LITE_ISA=amx"]
    options += TILES if is_trapped else ["-DVLLM_LITE_EMULATED_TILES"]
    digest = hashlib.sha256(repr((compiler(), options)).encode())
    sources_of = [*(CSRC / "cpu").rglob("*.*"), *(EMULATION / "cpu").rglob("*.*")]
    for path in [Path(__file__), *sorted(sources_of)]:
        digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"vllm-lite-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest.hexdigest()[:24]}.so"
    if not library.exists():
        unfinished = library.with_suffix(f".{os.getpid()}")
        sources = [str(EMULATION / "cpu" / "emulation" / name) for name in own]
        sources += [str(CSRC / "cpu" / name) for name in FILES]
        below = library.with_suffix(f".{os.getpid()}.o")
        if "-mavx512f" in options:
            lower = [*OPTIONS, *AVX512, "-DVLLM_LITE_ISA=avx512", "-c"]
            compile_files(lower, [str(CSRC / "cpu" / GROUPED)], below)
            sources.append(str(below))
        compile_files([*options, "-shared", "-Wl,-z,defs"], sources, unfinished)
        below.unlink(missing_ok=True)
        unfinished.replace(library)
    return EmulatedTiles(library, is_trapped)


def compile_files(options: Sequence[str], sources: Sequence[str], output: Path) -> None:
    """Run the compiler."""
    words = [str(compiler()), *options, *INCLUDES, "-fPIC", "-pthread", *sources, "-o", str(output)]
    # Keep a preloaded sanitizer out of the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(words, check=True, env=environment)
