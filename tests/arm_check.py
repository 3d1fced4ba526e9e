"""Compiles all kernels for 64-bit ARM, by whichever compiler is here: `make arm-check`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CSRC = Path(__file__).parents[1] / "csrc"
COMPILERS = (["aarch64-linux-gnu-g++"], ["clang++", "--target=aarch64-linux-gnu"])
WORDS = ["-fsyntax-only", "-std=c++20", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", f"-I{CSRC}"]
# As in csrc/CMakeLists.txt.
FLAGS = {"portable": (), "neon_bf16": ("-march=armv8.2-a+dotprod+bf16+i8mm",)}
# A name -> what is compiled, with its flags: each kernel for each level, and the choice of levels.
UNITS: dict[str, tuple[str, ...]] = {
    f"{source.stem} {isa}": (*flags, f"-DVLLM_LITE_ISA={isa}", str(source))
    for source in sorted(CSRC.glob("cpu/kernels/*.cpp"))
    for isa, flags in FLAGS.items()
} | {"isa": ("-DVLLM_LITE_HAS_NEON_BF16=1", str(CSRC / "cpu/isa.cpp"))}
COMPILER = next((words for words in COMPILERS if shutil.which(words[0])), None)


def errors(unit: str) -> str:
    """The compiler's messages about a unit."""
    assert COMPILER is not None
    words = [*COMPILER, *WORDS, *UNITS[unit]]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr


if __name__ == "__main__":
    if COMPILER is None:
        sys.exit(f"no compiler for ARM is here: install {' or '.join(c[0] for c in COMPILERS)}")
    found = {unit: told for unit in UNITS if (told := errors(unit))}
    if found:
        sys.exit("\n".join(found.values()))
    print(f"{len(UNITS)} units compile by {COMPILER[0]}")
