"""The kernels compile for 64-bit ARM, where a cross compiler is installed.

They run where the package does: its tests on an emulated processor are those of every other one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
COMPILER = "aarch64-linux-gnu-g++"
# As in csrc/CMakeLists.txt.
FLAGS = {"portable": (), "neon_bf16": ("-march=armv8.2-a+dotprod+bf16+i8mm",)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER} here"),
]


@pytest.mark.parametrize("isa", FLAGS)
@pytest.mark.parametrize("source", sorted(CSRC.glob("cpu/kernels/*.cpp")), ids=lambda p: p.stem)
def test_a_kernel_compiles(source: Path, isa: str) -> None:
    words = [COMPILER, "-fsyntax-only", "-std=c++20", "-Wall", "-Wextra", "-Wno-psabi", "-Werror"]
    words += [f"-I{CSRC}", *FLAGS[isa], f"-DVLLM_LITE_ISA={isa}", str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_choice_of_kernels_compiles() -> None:
    words = [COMPILER, "-fsyntax-only", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    words += ["-DVLLM_LITE_HAS_NEON_BF16=1", str(CSRC / "cpu" / "isa.cpp")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
