"""Checks every Triton and CUDA kernel on the GPU against references in float64.

    python benchmarks/gpu/check_kernels.py                     each kernel, and its worst error
    python benchmarks/gpu/check_kernels.py --only cuda         those whose line has the word
    python benchmarks/gpu/check_kernels.py --share 0/8         every eighth case
    python benchmarks/gpu/check_kernels.py --sanitize          memcheck and racecheck of csrc/cuda
    python benchmarks/gpu/check_kernels.py --dry-run           without a GPU; proves the script

A dry run interprets Triton and emulates CUDA on the host, in small shapes, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).parents[2]
# Tools and their own options. Torch asks the driver for what it then does without.
SANITIZERS = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
# The error of a case that raised.
FAILED = 1e99
# A place of (error, allowed) of a case.
Result = tuple[float, float]


class InFloat64(TorchFunctionMode):
    """Replaces float32 by float64 in the `with` block, so that references are nearly exact."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*args, **kwargs)


def moved(value: Any, change: Any) -> Any:
    """Apply `change` to each tensor in `value`."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        tensors = {f.name: moved(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **tensors)
    return value


def widened(tensor: Tensor) -> Tensor:
    """Widen a copy for the reference; 8-bit types stay as they are."""
    if tensor.is_floating_point() and tensor.dtype.itemsize > 1:
        return tensor.double()
    return tensor.clone()


def errors(case: Any, ours: Any, exact: Any) -> Result:
    """The case's worst error and what is allowed."""
    worst, allowed = 0.0, case.tolerance
    for mine, true in zip(ours, exact, strict=True):
        mine = mine.cpu()
        if not mine.is_floating_point():
            off = (mine.long() - true.long()).abs()
            differing = off.bool().double().mean().item()
            if differing > case.may_differ:
                return differing, case.may_differ
            if case.may_be_off and off.max() > case.may_be_off:
                return off.max().item(), case.may_be_off
            continue
        mine, true = mine.double(), true.double()
        usual = true[true.isfinite()].square().mean().sqrt()
        distance = torch.where(mine == true, 0.0, (mine - true).abs() / (true.abs() + usual))
        worst = max(worst, distance.nan_to_num(float("inf")).max().item())
    return worst, allowed


def check(case: Any, operations: Any, device: str) -> Result:
    """Run the case both ways."""
    tensors = [moved(value, lambda t: t.clone().to(device)) for value in case.arguments]
    ours = case.call(operations, tensors, case.dtype)
    # Nothing is computed, or how it is rounded is the specification.
    if case.tolerance == 0.0 or case.is_rounded:
        exact = case.call(
            case.reference, [moved(v, torch.clone) for v in case.arguments], case.dtype
        )
        return errors(case, ours, exact)
    with InFloat64():
        wide = [moved(value, widened) for value in case.arguments]
        exact = case.call(case.reference, wide, torch.float64)
    return errors(case, ours, exact)


def jobs(is_dry: bool, is_small: bool = False) -> Iterator[tuple[str, Any, Any]]:
    """(backend, case, its operations) of everything that can run here, in small shapes or large."""
    import attention_cases as attention
    import kernel_cases as cases
    from encoder_cases import encoder_cases
    from state_cases import state_cases

    from vllm_lite.kernels.gpu.triton import ops

    paged = cuda_operations(is_dry)
    # The interpreter multiplies no tiles of bfloat16, and is slow.
    types = (torch.float16,) if is_dry else (torch.float16, torch.bfloat16)
    rows, size, vocabulary, longest = 64, 4096, 151936, 9000
    if is_dry or is_small:
        rows, size, vocabulary, longest = 5, 96, 600, 300
    for dtype in types:
        for make in (
            cases.layer_cases(dtype, rows, size),
            attention.attention_cases(dtype, longest),
            attention.mixed_cases(dtype, longest),
            attention.descriptor_cases(dtype, longest),
            attention.sink_cases(dtype),
            attention.scaled_cache_cases(dtype),
            *(cases.write_cases(dtype, cached) for cached in (dtype, *attention.FLOAT8)),
            cases.scaled_write_cases(dtype),
            cases.rotated_cases(dtype),
            cases.narrow_cases(dtype, rows, size),
            cases.weight_cases(dtype, rows),
            state_cases(dtype),
            encoder_cases(dtype),
        ):
            for case in make:
                yield "triton", case, ops
                if case.is_paged and paged is not None:
                    yield "cuda", case, paged
        for case in attention.narrow_cache_cases(dtype):
            yield "triton", case, ops
            if paged is not None:
                yield "cuda", case, paged
    for case in cases.logit_cases(rows, vocabulary):
        yield "triton", case, ops


def cuda_operations(is_dry: bool) -> Any:
    """csrc/cuda's, or None where it is not built."""
    from vllm_lite.kernels.gpu.cuda.paged import PagedOps

    if is_dry:
        sys.path.insert(0, str(ROOT))
        from tests.kernels import emulated_cuda

        return PagedOps(emulated_cuda.build(), "cpu", 64)
    try:
        from vllm_lite import _cuda
    except ImportError as error:
        print(f"csrc/cuda is not checked: {error}", file=sys.stderr)
        return None
    return PagedOps(_cuda)


def use_cuda_library(path: Path) -> None:
    """Check a build of csrc/cuda that lies beside the package."""
    sys.path.insert(0, str(Path(__file__).parent))
    from measure import cuda_module

    cuda_module.install(path)


def in_share(number: int, share: str) -> bool:
    """Whether the case of this number is in a share such as 3/8."""
    index, _, count = share.partition("/")
    return number % int(count or 1) == int(index)


def sanitizer(tool: str) -> list[str]:
    """compute-sanitizer with one of SANITIZERS, over the kernels of csrc/cuda alone."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", *SANITIZERS[tool]]
    return [*command, "--kernel-name", "kernel_substring=vllm_lite"]


def sanitizer_commands() -> list[list[str]]:
    script = [sys.executable, str(Path(__file__).resolve()), "--only", "cuda"]
    return [[*sanitizer(tool), *script] for tool in SANITIZERS]


def sanitize() -> int:
    """Run the CUDA kernels under each sanitizer; the number of those that complain."""
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer is not on the path; it comes with the CUDA toolkit")
    failures = 0
    for command in sanitizer_commands():
        print(shlex.join(command), flush=True)
        failures += subprocess.run(command).returncode != 0
    return failures


def check_all(args: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """A result of each chosen case, and how many were not begun: for time, or a broken device."""
    end, is_broken = time.monotonic() + args.budget_s, False
    results: list[dict[str, Any]] = []
    num_left = 0
    for number, (backend, case, operations) in enumerate(jobs(args.dry_run, args.small)):
        line = f"{backend} {case.name}"
        if args.only not in line or not in_share(number, args.share):
            continue
        if is_broken or time.monotonic() > end:
            num_left += 1
            continue
        result = {"backend": backend, "case": case.name}
        try:
            worst, allowed = check(case, operations, "cpu" if args.dry_run else "cuda")
        except Exception as error:
            traceback.print_exc()
            worst, allowed, result["failure"] = FAILED, case.tolerance, str(error)[:300]
            # After a fault of the device this process can do nothing more with it.
            is_broken = isinstance(error, torch.AcceleratorError)
        results.append({**result, "error": worst, "allowed": allowed})
        verdict = "ok   " if worst <= allowed else "WRONG"
        print(f"{verdict} {worst:9.2e} of {allowed:7.1e}  {line}", flush=True)
    return results, num_left


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the backend and case")
    parser.add_argument("--share", default="0/1", help="3/8: the fourth of every eight cases")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no case after")
    parser.add_argument("--small", action="store_true", help="in the shapes of a dry run")
    parser.add_argument("--cuda-library", type=Path, help="a build of csrc/cuda to check")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if args.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        raise SystemExit("torch sees no NVIDIA GPU; --dry-run proves the script without one")
    if args.sanitize:
        if args.dry_run:
            print(*map(shlex.join, sanitizer_commands()), sep="\n")
            return
        sys.exit(sanitize())
    if args.cuda_library:
        use_cuda_library(args.cuda_library)
    torch.manual_seed(0)
    results, num_left = check_all(args)
    failures = sum(not r["error"] <= r["allowed"] for r in results)
    where = "interpreted and emulated on the host" if args.dry_run else torch.cuda.get_device_name()
    print(f"{len(results) - failures} of {len(results)} right, {where}")
    if num_left:
        print(f"{num_left} cases were not begun")
    if args.dry_run:
        print("dry run: no GPU was used and nothing was measured")
    if args.output:
        record = {"device": where, "is_dry_run": args.dry_run, "num_left": num_left}
        record["results"] = results
        args.output.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(failures or num_left))


if __name__ == "__main__":
    main()
