"""Runs the kernels' tests with builds that notice what C++ does not define: `make sanitize`.

    python tests/sanitize.py [address] [undefined] [-- ARGUMENTS OF PYTEST]

AddressSanitizer finds reads and writes beyond memory, also in the tensors that torch allocates;
UndefinedBehaviorSanitizer finds overflow, bad shifts, misaligned access. The first finding ends
the run. The builds lie in build/address and build/undefined and are used by nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The library that must be there before the interpreter, which is not built for it; and what it
# looks into at once, to follow exceptions, though the interpreter knows no C++.
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so"}
CXX_LIBRARY = "libstdc++.so.6"
OPTIONS = {
    # The interpreter does not free everything, and exits all the same.
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
# Triton's kernels know nothing of the compiled module, and benchmarks prove nothing here.
LEFT_OUT = ("test_triton*.py", "test_time_kernels.py", "test_objects.py")


def run(words: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command; ends the program where it fails."""
    print("$", *words, flush=True)
    code = subprocess.run(words, cwd=ROOT, env={**os.environ, **(environment or {})}).returncode
    if code:
        raise SystemExit(code)


def build(sanitizer: str) -> Path:
    """Compile csrc with `sanitizer`; the module."""
    if importlib.util.find_spec("nanobind") is None or shutil.which("cmake") is None:
        raise SystemExit("the build needs nanobind and cmake: pip install nanobind cmake")
    import nanobind

    folder = ROOT / "build" / sanitizer
    words = ["cmake", "-S", str(ROOT / "csrc"), "-B", str(folder)]
    words += ["-DCMAKE_BUILD_TYPE=Release", f"-DVLLM_LITE_SANITIZER={sanitizer}"]
    words += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}"]
    run(words)
    run(["cmake", "--build", str(folder), "--parallel", str(len(os.sched_getaffinity(0)))])
    (module,) = folder.glob("_cpu*.so")
    return module


def library(name: str) -> str:
    """The path of one of the compiler's libraries."""
    words = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def check(sanitizer: str, arguments: list[str]) -> None:
    """Build and test with one sanitizer."""
    module = build(sanitizer)
    preloaded = f"{library(RUNTIMES[sanitizer])} {library(CXX_LIBRARY)}"
    words = [sys.executable, "-m", "pytest", "-p", "tests.sanitized_module"]
    # What a sanitizer says goes to the terminal, past Python.
    words += ["--cpu-module", str(module), "--capture=sys", "-p", "no:cacheprovider"]
    words += ["-o", "timeout=0"]
    words += [f"--ignore-glob=tests/kernels/{name}" for name in LEFT_OUT]
    run([*words, *(arguments or ["tests/kernels"])], {"LD_PRELOAD": preloaded, **OPTIONS})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sanitizers", nargs="*", metavar="|".join(RUNTIMES))
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    wanted = parser.parse_args(words[:cut]).sanitizers or list(RUNTIMES)
    if unknown := set(wanted) - set(RUNTIMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(RUNTIMES)}")
    for sanitizer in wanted:
        check(sanitizer, words[cut + 1 :])


if __name__ == "__main__":
    main()
