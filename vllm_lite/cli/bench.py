"""`vllm-lite bench`: read the options of one benchmark, then run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_lite.bench.options import (
    LatencyOptions,
    ServeOptions,
    StartupOptions,
    ThroughputOptions,
)
from vllm_lite.bench.options.sweep import (
    SweepParetoOptions,
    SweepPlotOptions,
    SweepServeOptions,
    SweepStartupOptions,
    SweepWorkloadOptions,
)
from vllm_lite.config.cli import OptionParser
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.option import make
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import nearest

# Benchmark -> what it is for.
BENCHMARKS = {
    "latency": "Time one batch in this process, again and again.",
    "throughput": "Generate for many prompts at once in this process.",
    "serve": "Load a running server, of whatever make, over its OpenAI API.",
    "startup": "Time how long the engine takes to start, cold and warm.",
    "sweep": "Run serve or startup over combinations of options, and draw the results.",
}
# Benchmarks of an engine in this process, and what they are told beside its options.
_ENGINE_BENCHMARKS = {
    "latency": LatencyOptions,
    "throughput": ThroughputOptions,
    "startup": StartupOptions,
}
EngineOptions = LatencyOptions | ThroughputOptions | StartupOptions
# Sweep -> its options, the function that runs it, and what it is for.
SWEEPS: dict[str, tuple[type, str, str]] = {
    "serve": (
        SweepServeOptions,
        "serve.run_sweep_serve",
        "Load servers with combinations of options.",
    ),
    "serve_workload": (
        SweepWorkloadOptions,
        "workload.run_sweep_workload",
        "Load servers more and more, to see what latency throughput costs.",
    ),
    "startup": (
        SweepStartupOptions,
        "startup.run_sweep_startup",
        "Time starts with combinations of options.",
    ),
    "plot": (
        SweepPlotOptions,
        "figures.run_sweep_plot",
        "Draw curves over an experiment's results.",
    ),
    "plot_pareto": (
        SweepParetoOptions,
        "figures.run_sweep_pareto",
        "Draw an experiment's best trade-offs between users and devices.",
    ),
}
# Sweeps that read the experiment in a directory.
_READERS = ("plot", "plot_pareto")
_SWEEP_USAGE = "usage: vllm-lite bench sweep [-h] {" + ",".join(SWEEPS) + "} ...\n"
_USAGE = "usage: vllm-lite bench [-h] {" + ",".join(BENCHMARKS) + "} ...\n"


def run(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names; returns the exit code."""
    name = _choose(argv, BENCHMARKS, _USAGE, "Measure an engine.")
    if not isinstance(name, str):
        return name
    words = argv[1:]
    if name == "sweep":
        return run_sweep(words)
    if name == "serve":
        options = parse_serve(words)
        return int(_run_in("serve.run_serve", options))
    own, engine_args = parse_engine(name, _ENGINE_BENCHMARKS[name], words)
    return int(_run_in(f"{name}.run_{name}", own, engine_args))


def run_sweep(argv: Sequence[str]) -> int:
    """Run the sweep that the first word names; returns the exit code."""
    abouts = {name: about for name, (_, _, about) in SWEEPS.items()}
    name = _choose(argv, abouts, _SWEEP_USAGE, "Measure combinations of options.")
    if not isinstance(name, str):
        return name
    cls, function, _ = SWEEPS[name]
    parser = sweep_parser(name)
    if name not in _READERS:
        options: object = make(cls, parser.parse_options(argv[1:])[0])
        return int(_run_in("sweep." + function, options))
    words, _, (given,) = parser.parse(argv[1:])
    if len(words) != 1:
        parser.error("it takes one EXPERIMENT_DIR, such as results/20260101_120000")
    return int(_run_in("sweep." + function, words[0], make(cls, given)))


def sweep_parser(name: str) -> OptionParser:
    """The parser of `vllm-lite bench sweep NAME`."""
    cls, _, about = SWEEPS[name]
    usage, example = "[options]", ""
    if name in _READERS:
        usage, example = "EXPERIMENT_DIR [options]", " results/20260101_120000"
    elif name.startswith("serve"):
        usage = "--serve-cmd COMMAND --bench-cmd COMMAND [options]"
        example = " --serve-cmd 'vllm-lite serve demo' --bench-cmd 'vllm-lite bench serve'"
    prog = f"vllm-lite bench sweep {name}"
    return OptionParser(prog, usage, about, (cls,), examples=(prog + example,))


def _choose(argv: Sequence[str], abouts: Mapping[str, str], usage: str, about: str) -> str | int:
    """The command that the first word names, or an exit code once help or an error is out."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        lines = [f"  {known:<16}{text}" for known, text in abouts.items()]
        sys.stdout.write(f"{usage}\n{about}\n\n" + "\n".join(lines) + "\n")
        return 0
    if name in abouts:
        return name
    if name == "mm-processor":
        cause = "bench mm-processor is not available in this build: it takes text only"
    else:
        close = nearest(name, abouts)
        hint = f"did you mean {close}?" if close else f"choose from {', '.join(abouts)}"
        cause = f"unknown benchmark {name!r} ({hint})"
    sys.stderr.write(f"{usage}vllm-lite bench: error: {cause}\n")
    return 2


def parse_serve(argv: Sequence[str]) -> ServeOptions:
    """The options of `bench serve`; exits with code 2 or raises UsageError."""
    parser = benchmark_parser("serve")
    words, file_model, (given,) = parser.parse(argv)
    _refuse_words(parser, words)
    if file_model is not None:
        given.setdefault("model", file_model)
    return make(ServeOptions, given)


def parse_engine(
    name: str, cls: type[EngineOptions], argv: Sequence[str]
) -> tuple[EngineOptions, EngineArgs]:
    """A benchmark's own options and its engine's; exits with code 2 or raises UsageError."""
    parser = benchmark_parser(name)
    words, file_model, (own, engine) = parser.parse(argv)
    _refuse_words(parser, words)
    if file_model is not None:
        engine.setdefault("model", file_model)
    return make(cls, own), EngineArgs(**engine)


def benchmark_parser(name: str) -> OptionParser:
    """The parser of `vllm-lite bench NAME`, but for sweep."""
    engine = _ENGINE_BENCHMARKS.get(name)
    classes: tuple[type, ...] = (engine, VllmConfig) if engine else (ServeOptions,)
    prog = f"vllm-lite bench {name}"
    examples = (f"{prog} --model demo",)
    return OptionParser(prog, "[options]", BENCHMARKS[name], classes, examples=examples)


def _refuse_words(parser: OptionParser, words: Sequence[str]) -> None:
    if words:
        parser.error(f"unrecognized arguments: {' '.join(words)}")


def _run_in(function: str, *values: Any) -> Any:
    module, _, name = function.rpartition(".")
    return getattr(_imported(module), name)(*values)


def _imported(name: str) -> Any:
    # Imported here: help and mistakes must not wait for the engine.
    return importlib.import_module(f"vllm_lite.bench.{name}")
