"""The machine's limits, measured now: memory read and arithmetic done per second at most.

A small program (limits.cpp) is compiled for this machine and run; without a compiler there are
no limits, and shares of them cannot be told.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

Arithmetic = Literal["float32", "bfloat16", "int8"]
_SOURCE = Path(__file__).with_suffix(".cpp")
# Portable vectors of 64 bytes are passed about: no compiler need warn that their layout may differ.
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-pthread", "-Wno-psabi")


@dataclass(frozen=True, slots=True)
class Limits:
    """Billions a second, by all threads together; 0 where the processor cannot."""

    read_gb_s: float
    float32_gflop_s: float
    bfloat16_gflop_s: float
    int8_gop_s: float
    # Read in pieces of 2 KiB that lie anywhere, as blocks of a cache do.
    scattered_gb_s: float = 0.0

    def seconds(self, num_bytes: float, operations: float, arithmetic: Arithmetic) -> float:
        """The longer of moving the bytes and doing the operations.

        A processor without an instruction for a type does its work in float32.
        """
        rates = {
            "float32": self.float32_gflop_s,
            "bfloat16": max(self.bfloat16_gflop_s, self.float32_gflop_s),
            "int8": max(self.int8_gop_s, self.float32_gflop_s),
        }
        return max(num_bytes / self.read_gb_s, operations / rates[arithmetic]) * 1e-9


def measure_limits(num_threads: int) -> Limits | None:
    """The limits with so many threads; None where they cannot be measured."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "limits")
        built = subprocess.run([compiler, *_FLAGS, str(_SOURCE), "-o", program], check=False)
        if built.returncode:
            return None
        done = subprocess.run([program, str(num_threads)], capture_output=True, check=False)
        return None if done.returncode else Limits(**json.loads(done.stdout))


def best(found: Iterable[Limits | None]) -> Limits | None:
    """The highest of each limit in several measurements, for the quickest of several times.

    What disturbs one only lowers it.
    """
    return _each(max, found)


def typical(found: Iterable[Limits | None]) -> Limits | None:
    """The median of each limit in several measurements, for medians of times in the same run."""
    return _each(statistics.median, found)


def _each(
    statistic: Callable[[Sequence[float]], float], found: Iterable[Limits | None]
) -> Limits | None:
    known = [limits for limits in found if limits is not None]
    if not known:
        return None
    return Limits(*(statistic(values) for values in zip(*map(astuple, known), strict=True)))
