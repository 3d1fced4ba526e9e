"""Times each kernel against its floor: what this machine's memory and arithmetic allow.

    python benchmarks/time_kernels.py
    python benchmarks/time_kernels.py --only linear,attention --shape 1.1b --match "x 960"
    VLLM_LITE_CPU_ISA=avx2 python benchmarks/time_kernels.py

The column `counted` is the share of what all instructions of GGUF's loops allow, where they are
counted; `scattered` is the share of reading pieces of 2 KiB that lie anywhere, as decode attention
does; `torch` is how many times longer torch (oneDNN) takes for the same, where that is asked. With
`--rounds` every case is timed so often, one round after the other. The limits are measured before
and after each family in each round. Shares are of median times against the median limits. A share
of 100 % means that nothing is left to gain without moving fewer bytes or computing less; it is
higher where the data lie in a cache. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

# As in an engine's process: threads of torch that spin would take the kernels' processors.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from kernels.arguments import count, duration, output_file
from kernels.case import SHAPES, Timing, measure
from kernels.limits import Limits, measure_limits, typical
from peers.machine import describe_machine

from vllm_lite.kernels import dispatch
from vllm_lite.platform import num_compute_threads

FAMILIES = ("linear", "head", "quantized", "grouped", "attention", "rows", "sampling")
HEAD = (
    f"{'kernel':<26} {'size':<32} {'us':>9} {'GB/s':>8} {'GFLOP/s':>8} {'of limit':>9} "
    f"{'counted':>8} {'scattered':>9} {'torch':>6}"
)


def text(timing: Timing, limits: Limits | None) -> str:
    """One line of the table."""
    case = timing.case
    share = "-" if limits is None else f"{timing.share(limits):.0%}"
    more = limits and (timing.share_of_counted(limits), timing.share_of_scattered(limits))
    counted, scattered = (f"{reached:.0%}" if reached else "-" for reached in more or (None, None))
    rates = f"{timing.gb_s:8.1f} {timing.gflop_s:8.0f}"
    line = f"{case.kernel:<26} {case.size:<32} {timing.seconds * 1e6:9.1f} {rates} {share:>9}"
    line += f" {counted:>8} {scattered:>9}"
    if timing.rival_seconds is None:
        return line
    return f"{line} {timing.rival_seconds / timing.seconds:4.2f} x"


def record(rounds: Sequence[Timing], limits: Limits | None) -> dict[str, Any]:
    """The same for the file, of a case's rounds from the quickest to the slowest."""
    timing = median(rounds)
    return {
        "kernel": timing.case.kernel,
        "size": timing.case.size,
        "microseconds": round(timing.seconds * 1e6, 2),
        "microseconds_of_rounds": [round(one.seconds * 1e6, 2) for one in rounds],
        "gb_s": round(timing.gb_s, 2),
        "gflop_s": round(timing.gflop_s, 1),
        "share_of_limit": limits and round(timing.share(limits), 4),
        "share_of_counted": limits and timing.share_of_counted(limits),
        "share_of_scattered": limits and timing.share_of_scattered(limits),
        "torch_microseconds": timing.rival_seconds and round(timing.rival_seconds * 1e6, 2),
    }


def median(rounds: Sequence[Timing]) -> Timing:
    return rounds[len(rounds) // 2]


def describe(limits: Limits | None) -> str:
    if limits is None:
        return "limits unknown: measuring them needs a C++ compiler"
    return (
        f"limits: reads {limits.read_gb_s:.1f} GB/s, scattered pieces {limits.scattered_gb_s:.1f}; "
        f"float32 {limits.float32_gflop_s:.0f}, "
        f"bfloat16 {limits.bfloat16_gflop_s:.0f} GFLOP/s, int8 {limits.int8_gop_s:.0f} GOP/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(FAMILIES), metavar=",".join(FAMILIES))
    parser.add_argument("--shape", choices=SHAPES, default="demo")
    parser.add_argument("--match", default="", help="only cases whose line holds this text")
    parser.add_argument("--seconds", type=duration, default=0.3, help="of calls for each case")
    parser.add_argument("--rounds", type=count, default=1)
    parser.add_argument("--output-json", type=output_file)
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(FAMILIES):
        parser.error(f"--only knows {','.join(FAMILIES)}, not {','.join(sorted(unknown))}")
    torch.manual_seed(0)
    num_threads = num_compute_threads()
    torch.set_num_threads(num_threads)
    dispatch.select_ops("cpu")
    dispatch.set_num_threads(num_threads)
    found = [measure_limits(num_threads)]
    timings: dict[tuple[str, str], list[Timing]] = {}
    for number in range(args.rounds):
        for family in chosen:
            for case in importlib.import_module(f"kernels.{family}").cases(SHAPES[args.shape]):
                if args.match in f"{case.kernel} {case.size}":
                    sys.stderr.write(f"{number + 1}: {case.kernel}, {case.size}\n")
                    rounds = timings.setdefault((case.kernel, case.size), [])
                    rounds.append(measure(case, args.seconds))
            found.append(measure_limits(num_threads))
    limits = typical(found)
    for rounds in timings.values():
        rounds.sort(key=lambda timing: timing.seconds)
    print(f"kernels: {dispatch.describe()}\n{describe(limits)}\n\n{HEAD}")
    for rounds in timings.values():
        print(text(median(rounds), limits))
    if args.output_json:
        content = {
            "machine": describe_machine(),
            "kernels": dispatch.describe(),
            "shape": args.shape,
            "limits": limits and asdict(limits),
            "timings": [record(rounds, limits) for rounds in timings.values()],
        }
        args.output_json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
