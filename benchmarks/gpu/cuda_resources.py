"""Compiles every kernel of csrc/cuda with nvcc and reports its resources; no GPU is needed.

    python benchmarks/gpu/cuda_resources.py            prints registers, spills and thread blocks
    python benchmarks/gpu/cuda_resources.py --write    and records them in cuda_resources.json
    python benchmarks/gpu/cuda_resources.py --check    fails if a kernel needs more than that

A spill fails under any compiler; growth is judged against figures of the same nvcc alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

RECORD = Path(__file__).with_name("cuda_resources.json")
CSRC = Path(__file__).parents[2] / "csrc"
SOURCES = ("decode_bfloat16.cu", "decode_half.cu")
TARGETS = ("sm_80", "sm_89", "sm_90")
GROWTH = 1.1
REPORT = re.compile(
    r"Compiling entry function '(\w+)' for '(\w+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers",
    re.DOTALL,
)
Found = dict[str, dict[str, dict[str, int]]]


def nvcc_version(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+\.\d+)", text)
    if found is None:
        raise SystemExit(f"{nvcc} does not say its version:\n{text}")
    return found[1]


def readable(names: list[str]) -> list[str]:
    """Mangled names as a C++ compiler's c++filt reads them, without namespaces and parameters."""
    done = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    plain = [
        re.sub(r"vllm_lite::cuda::|^void |\(int\)", "", line) for line in done.stdout.split("\n")
    ]
    return [line.partition("(")[0] for line in plain[: len(names)]]


def compile_one(nvcc: str, source: str, target: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", "-cubin", f"-arch={target}", "-Xptxas", "-v"]
        command += [f"-I{CSRC}", str(CSRC / "cuda" / source), "-o", f"{folder}/kernels.cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nvcc cannot compile {source} for {target}:\n{done.stderr[-3000:]}")
    reports = REPORT.findall(done.stderr)
    found: Found = {}
    for name, report in zip(readable([r[0] for r in reports]), reports, strict=True):
        stack, stores, loads, registers = map(int, report[2:])
        found[name] = {
            report[1]: {"registers": registers, "stack": stack, "spills": stores + loads}
        }
    return found


def measure(nvcc: str) -> Found:
    """Resources by kernel and target; as many compilers at once as there are processors."""
    found: Found = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for some in pool.map(lambda job: compile_one(nvcc, *job), product(SOURCES, TARGETS)):
            for name, targets in some.items():
                found.setdefault(name, {}).update(targets)
    return dict(sorted(found.items()))


def complaints(found: Found, version: str) -> list[str]:
    """List kernels that spill or need more than recorded."""
    recorded = json.loads(RECORD.read_text())
    is_comparable = recorded["nvcc"].partition(".")[0] == version.partition(".")[0]
    result = []
    for name, targets in found.items():
        for target, now in targets.items():
            if now["spills"] or now["stack"]:
                result.append(f"{name} for {target} spills or keeps an array in memory: {now}")
            if not is_comparable:
                continue
            before = recorded["kernels"].get(name, {}).get(target)
            if before is None:
                result.append(f"{name} for {target} is not recorded; run with --write")
            elif now["registers"] > GROWTH * before["registers"]:
                result.append(
                    f"{name} for {target} takes {now['registers']} registers, "
                    f"{before['registers']} before"
                )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("nvcc is not on the path; install the CUDA toolkit")
    version, found = nvcc_version(nvcc), measure(nvcc)
    for name, targets in found.items():
        for target, now in targets.items():
            stack = max(now["stack"], now["spills"])
            print(f"{target} {now['registers']:4} registers {stack:4} B of stack  {name}")
    if args.write:
        RECORD.write_text(json.dumps({"nvcc": version, "kernels": found}, indent=1) + "\n")
    problems = complaints(found, version) if args.check else []
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
