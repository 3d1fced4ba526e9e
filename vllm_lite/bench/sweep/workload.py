"""`bench sweep serve_workload`: the load grows from one request at a time to all at once.

The two ends are measured first; the levels between are spread evenly over what they reached.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from vllm_lite.bench.options import DatasetOptions
from vllm_lite.bench.options.sweep import SweepWorkloadOptions
from vllm_lite.bench.sweep.commands import SweptServer
from vllm_lite.bench.sweep.experiment import Record
from vllm_lite.bench.sweep.overrides import Overrides, read_overrides
from vllm_lite.bench.sweep.serve import ServeSweep
from vllm_lite.errors import UsageError


def run_sweep_workload(options: SweepWorkloadOptions) -> int:
    """Run the sweep; raises UsageError."""
    loads = read_overrides("--bench-params", options.sweep.bench_params)
    for load in loads:
        if load.get(options.workload_var) is not None:
            raise UsageError(
                f"--bench-params sets {options.workload_var}, which the sweep finds itself"
            )
    sweep = ServeSweep(options.sweep)
    with sweep.keeping():
        for serve in sweep.servers:
            with sweep.server(serve) as server:
                for load in loads:
                    if sweep.is_linked(serve, load):
                        _explore(sweep, server, serve, load, options)
    return 0


def _explore(
    sweep: ServeSweep,
    server: SweptServer | None,
    serve: Overrides,
    load: Overrides,
    options: SweepWorkloadOptions,
) -> None:
    """Measure both ends, then the levels between."""
    variable = options.workload_var

    def run(level: int, **further: int) -> list[Record]:
        own = load.having(**{**further, variable: level})
        return sweep.run_combination(server, serve, own, f"WL--{variable}={level}")

    count = _num_prompts(load, options.sweep.bench_words)
    alone = run(1, max_concurrency=1)
    together = run(count, max_concurrency=count)
    if sweep.is_dry:
        sys.stdout.write("The levels between follow from what these reach.\n")
        return
    if not alone or not together:
        sys.stdout.write("An end of the load has no results: no levels between.\n")
        return
    low = math.ceil(_reached(alone, variable))
    high = math.floor(_reached(together, variable))
    levels = np.linspace(low, high, options.workload_iters)[1:-1]
    for level in sorted({round(float(level)) for level in levels} - {0, 1, count}):
        run(level)


def _num_prompts(load: Overrides, words: Sequence[str]) -> int:
    given = load.get("num_prompts")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if given is None and name in ("--num-prompts", "--num_prompts"):
            given = value if equals else following
    try:
        return DatasetOptions().num_prompts if given is None else int(given)
    except ValueError:
        raise UsageError(f"--num-prompts {given!r} is not a whole number") from None


def _reached(records: Sequence[Record], variable: str) -> float:
    """The level that runs came to: requests per second, or how many were in flight."""
    rates = np.array([record["request_throughput"] for record in records])
    if variable == "request_rate":
        return float(rates.mean())
    return float((rates * [record["mean_e2el_ms"] / 1000 for record in records]).mean())
