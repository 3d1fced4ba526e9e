"""How fast bfloat16 rows can be multiplied by grouped codes without tiles, at most.

    python benchmarks/grouped_floor.py                 nine rounds, a few seconds, one thread
    python benchmarks/grouped_floor.py --rounds 3 --output floor.json

The loop alone (grouped_floor.cpp): codes of 128 inputs by 32 outputs, rows in the nearest caches.
A segment is the inputs that share a scale: its sums are scaled and added to totals. Segments: the
rate beside the rate without any, the best of several numbers of rows at once. Making: the share of
the time that turning codes into bfloat16 numbers takes. Bound: both together, the most that a form
can reach of bfloat16's speed. One row: the bytes of codes a second that a thread multiplies,
from the nearest cache. A book's vectors of eight inputs lie in the second cache. Each is a median
over the rounds. Ends with 1 where the processor
lacks AVX512-BF16, or the system a compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.machine import describe_machine

from vllm_lite.platform import isa_flags

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++20", "-O3", "-march=native")
SEGMENTS = (128, 64, 32, 16)
FORMS = ("four_bits", "float8")
CODES = 128 * 32
VECTORS = CODES // 8
PRODUCTS = 64 * 64 * 2  # of two vectors: rows, pairs of inputs, and vectors of outputs

Times = dict[str, list[float]]


def measure(rounds: int) -> Times:
    """Nanoseconds of each round by name; raises RuntimeError where they cannot be measured."""
    if "avx512_bf16" not in isa_flags():
        raise RuntimeError("this processor has no AVX512-BF16, which the loop is made of")
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("no C++ compiler found: install g++, or name one in CXX")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "grouped_floor")
        built = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", program], check=False)
        if built.returncode:
            raise RuntimeError(f"{compiler} does not compile {SOURCE.name}")
        done = subprocess.run([program, str(rounds)], capture_output=True, text=True, check=True)
    found: Times = json.loads(done.stdout)
    return found


def rows_of(found: Times) -> list[dict[str, float]]:
    """A row of shares for each length of segment."""
    # Of each round the quickest way to multiply without segments.
    wholes = [found[name] for name in found if name.startswith("whole")]
    whole = [min(times) for times in zip(*wholes, strict=True)]

    def share(of: list[float], beside: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(of, beside, strict=True))

    rows = []
    for length in SEGMENTS:
        segments = found[f"segments {length}"]
        row: dict[str, float] = {"segment": length, "segments": share(whole, segments)}
        for form in FORMS:
            both = found[f"{form} {length}"]
            row[f"{form}_making"] = 1 - share(segments, both)
            row[f"{form}_bound"] = share(whole, both)
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="write JSON here")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}: give 1 or more")
    if args.output and not args.output.parent.is_dir():
        parser.error(f"--output: there is no folder {args.output.parent}")
    try:
        found = measure(args.rounds)
    except RuntimeError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    rows = rows_of(found)
    medians = {name: statistics.median(times) for name, times in found.items()}
    best = min(time for name, time in medians.items() if name.startswith("whole"))
    print(f"{PRODUCTS / best:.2f} products a nanosecond without segments")
    print("inputs of       beside no   4 bits:          fp8:")
    print("a segment       segments    making  bound    making  bound")
    for row in rows:
        print(
            f"{row['segment']:9.0f}       {row['segments']:8.2f}    "
            f"{row['four_bits_making']:6.0%}  {row['four_bits_bound']:5.2f}    "
            f"{row['float8_making']:6.0%}  {row['float8_bound']:5.2f}"
        )
    print("one row of                one thread")
    one_row = {
        name.removeprefix("one row, "): CODES * int(name.split()[2]) / 8 / time
        for name, time in medians.items()
        if name.startswith("one row")
    }
    for name, speed in one_row.items():
        bits, _, segment = name.split()
        print(f"{bits} bits, segments of {segment:>3}   {speed:6.1f} GB/s")
    book = {
        "nanoseconds_of_vector": medians["book alone"] / VECTORS,
        "rows_64_bound": best / medians["book 64"],
    }
    print(
        f"a vector of a book {book['nanoseconds_of_vector']:.2f} ns, "
        f"64 rows {book['rows_64_bound']:.2f} of those by plain numbers"
    )
    if args.output:
        told = {"machine": describe_machine() | {"threads_used": 1}, "rounds": args.rounds}
        told |= {"products_per_ns": PRODUCTS / best, "rows": rows, "nanoseconds": medians}
        told |= {"one_row_gb_per_s": one_row, "book": book}
        args.output.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
