"""AMX kernels on a processor that has them: their tests, their bits, and their speed.

    make amx-check

Runs the kernels' tests, in which real tiles must give the emulated unit's bits, then times products
and attention on tiles and on the level below in turns. Writes results/amx.json. Without AMX it says
so and exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernels.arguments import count, duration, output_file
from peers.machine import describe_machine

from vllm_lite import _cpu

ROOT = Path(__file__).resolve().parents[1]
# Where there are tiles, they are also one of the instruction sets of the last four.
TESTS = ("tiles", "tile_attention", "linear", "quantized", "grouped_linear", "attention")
FAMILIES = "linear,quantized,grouped,attention"
TILES, BELOW = "amx", "avx512_bf16"
Record = dict[str, Any]


def time_kernels(isa: str, seconds: float) -> Record:
    """The record of time_kernels.py, with so many seconds for each case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "times.json"
        words = ["--only", FAMILIES, "--seconds", str(seconds), "--output-json", str(path)]
        subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "time_kernels.py"), *words],
            env=os.environ | {"VLLM_LITE_CPU_ISA": isa},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        found: Record = json.loads(path.read_text())
    if not found["kernels"].startswith(isa):
        raise SystemExit(f"{isa} was asked for, and these ran: {found['kernels']}")
    return found


def side_by_side(tiles: Sequence[Record], below: Sequence[Record]) -> list[Record]:
    """A record for each case: medians over the runs, and how many times faster tiles are."""
    times = [_medians(runs, "microseconds") for runs in (tiles, below)]
    shares = _medians(tiles, "share_of_limit")
    return [
        {
            "kernel": kernel,
            "size": size,
            TILES: round(fast, 2),
            BELOW: round(times[1][kernel, size], 2),
            "times_faster": round(times[1][kernel, size] / fast, 3),
            "share_of_limit": shares.get((kernel, size)),
        }
        for (kernel, size), fast in times[0].items()
        if (kernel, size) in times[1]
    ]


def _medians(runs: Sequence[Record], name: str) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for timing in run["timings"]:
            if timing[name] is not None:
                found.setdefault((timing["kernel"], timing["size"]), []).append(timing[name])
    return {key: statistics.median(values) for key, values in found.items()}


def text(record: Record) -> str:
    """One line of the table."""
    share = record["share_of_limit"]
    told = "-" if share is None else f"{share:.0%}"
    return (
        f"{record['kernel']:<26} {record['size']:<32} {record[TILES]:9.1f} {record[BELOW]:11.1f} "
        f"{record['times_faster']:6.2f} {told:>9}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--seconds", type=duration, default=0.3, help="of calls for each case")
    results = ROOT / "benchmarks" / "results" / "amx.json"
    parser.add_argument("--output", type=output_file, default=results)
    args = parser.parse_args()
    if TILES not in _cpu.supported_isas():
        print(f"this processor has no AMX: its kernels are {', '.join(_cpu.supported_isas())}")
        return 1
    files = [f"tests/kernels/test_{name}.py" for name in TESTS]
    tests = subprocess.run([sys.executable, "-m", "pytest", *files], cwd=ROOT, check=False)
    if tests.returncode:
        return tests.returncode
    runs: dict[str, list[Record]] = {TILES: [], BELOW: []}
    for turn in range(1, args.rounds + 1):
        for isa, done in runs.items():
            print(f"round {turn}, {isa}", flush=True)
            done.append(time_kernels(isa, args.seconds))
    records = side_by_side(runs[TILES], runs[BELOW])
    print(
        f"{'kernel':<26} {'size':<32} {'amx, us':>9} {'below, us':>11} {'times':>6} {'of limit':>9}"
    )
    for record in records:
        print(text(record))
    content = {
        "machine": describe_machine() | {"date": datetime.now(UTC).date().isoformat()},
        "tests": files,
        "rounds": args.rounds,
        "limits": [run["limits"] for run in runs[TILES]],
        "kernels": records,
    }
    args.output.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
