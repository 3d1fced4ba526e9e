"""`bench startup`: how long the engine takes to start, with empty caches and with filled ones.

Every start is a process of its own. Before a cold one the checkpoint's files leave the page
cache, so that weights come from the disk; a warm one finds them in memory. Nothing here is
compiled, so the times of compilation that vLLM's readers look for are zeros.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from vllm_lite.bench.options.load import StartupOptions
from vllm_lite.bench.report import PERCENTILES, percentiles_json, show, write_json
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.errors import UsageError
from vllm_lite.progress import progress_bar

_RULE = "=" * 60
_COMPILATION = "compilation"
# The clock covers the engine's imports, but not the interpreter's start.
_PROGRAM = (
    "import time; began = time.perf_counter(); "
    "from vllm_lite.bench.startup_once import main; main(began)"
)


def run_startup(options: StartupOptions, engine_args: EngineArgs) -> int:
    """Time the starts and print the figures; raises UsageError."""
    model = engine_args.create_engine_config("llm").model
    trust = model.trust_remote_code
    source = Path(resolve_model_source(model.model, trust_remote_code=trust))
    given = {"model": engine_args.model, **engine_args.given}
    cold = []
    for _ in progress_bar(range(options.num_iters_cold), desc="Cold startup iterations"):
        drop_from_page_cache(source)
        cold.append(_start(given))
    for _ in progress_bar(range(options.num_iters_warmup), desc="Warmup iterations"):
        _start(given)
    rounds = progress_bar(range(options.num_iters_warm), desc="Warm startup iterations")
    warm = [_start(given) for _ in rounds]
    phases = {"cold": cold, "warm": warm}
    lines = [_RULE, "STARTUP TIME BENCHMARK RESULTS", _RULE]
    for name, seconds in phases.items():
        lines += _section(f"{name.upper()} STARTUP", seconds)
    show("\n".join([*lines, _RULE]))
    if options.output_json is not None:
        content: dict[str, object] = {}
        for name, seconds in phases.items():
            content |= _figures(f"{name}_startup", seconds)
            content |= _figures(f"{name}_{_COMPILATION}", [0.0] * len(seconds))
        write_json(options.output_json, content)
    return 0


def drop_from_page_cache(source: Path) -> None:
    """Ask the system to forget what it holds in memory of a file or a directory's files."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    for path in files:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _start(given: dict[str, object]) -> float:
    """Seconds that an engine took in a fresh process; raises UsageError with its message."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=msgspec.json.encode(given),
        stdout=subprocess.PIPE,
        check=False,
    )
    try:
        answer = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError:
        raise UsageError(
            f"a start ended with code {done.returncode} and said nothing; its log is above"
        ) from None
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    return float(answer["seconds"])


def _section(title: str, seconds: Sequence[float]) -> list[str]:
    named = {"startup": seconds, _COMPILATION: [0.0] * len(seconds)}
    lines = ["", f"{title}:"]
    lines += [f"Avg {name} time: {np.mean(times):.2f} seconds" for name, times in named.items()]
    for name, times in named.items():
        lines.append(f"{name.capitalize()} time percentiles:")
        shown = percentiles_json(times, PERCENTILES)
        lines += [f"  {percentile}%: {value:.2f} seconds" for percentile, value in shown.items()]
    return lines


def _figures(name: str, seconds: Sequence[float]) -> dict[str, object]:
    return {
        f"avg_{name}_time": float(np.mean(seconds)),
        f"{name}_times": list(seconds),
        f"{name}_percentiles": percentiles_json(seconds, PERCENTILES),
    }
