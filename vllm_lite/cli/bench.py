"""`vllm-lite bench`: read the options of one benchmark, then run it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from vllm_lite.bench.options.load import (
    LatencyOptions,
    ServeOptions,
    StartupOptions,
    ThroughputOptions,
)
from vllm_lite.bench.options.sweep import SweepOptions
from vllm_lite.cli.main import call
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import make
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import nearest

# Benchmark -> what it is for.
BENCHMARKS = {
    "latency": "Time one batch in this process, again and again.",
    "throughput": "Generate for many prompts at once in this process.",
    "serve": "Load a running server, of whatever make, over its OpenAI API.",
    "startup": "Time how long the engine takes to start, cold and warm.",
    "sweep": "Run serve over combinations of options.",
}
# Benchmarks of an engine in this process, and what they are told beside its options.
_ENGINE_BENCHMARKS = {
    "latency": LatencyOptions,
    "throughput": ThroughputOptions,
    "startup": StartupOptions,
}
EngineOptions = LatencyOptions | ThroughputOptions | StartupOptions
SWEEPS = {"serve": "Load servers with combinations of options."}
# What to use instead of vLLM's other benchmarks.
_ABSENT = {
    "mm-processor": "this build takes text only",
    "serve_workload": "use bench sweep serve with a --bench-params file of request rates",
    "startup": "run bench startup once for each setting",
    "plot": "plot summary.csv of bench sweep serve with a tool of your choice",
    "plot_pareto": "plot summary.csv of bench sweep serve with a tool of your choice",
}
_SWEEP_USAGE = "usage: vllm-lite bench sweep [-h] {" + ",".join(SWEEPS) + "} ...\n"
_USAGE = "usage: vllm-lite bench [-h] {" + ",".join(BENCHMARKS) + "} ...\n"


def run(argv: Sequence[str]) -> int:
    name = _choose(argv, BENCHMARKS, _USAGE, "Measure an engine.")
    if not isinstance(name, str):
        return name
    words = argv[1:]
    if name == "sweep":
        return run_sweep(words)
    if name == "serve":
        options = parse_serve(words)
        return int(call("bench.serve.run_serve", options))
    own, engine_args = parse_engine(name, _ENGINE_BENCHMARKS[name], words)
    return int(call(f"bench.{name}.run_{name}", own, engine_args))


def run_sweep(argv: Sequence[str]) -> int:
    name = _choose(argv, SWEEPS, _SWEEP_USAGE, "Measure combinations of options.")
    if not isinstance(name, str):
        return name
    (values,) = sweep_parser().parse_options(argv[1:])
    return int(call("bench.sweep.serve.run_sweep_serve", make(SweepOptions, values)))


def sweep_parser() -> OptionParser:
    prog = "vllm-lite bench sweep serve"
    usage = "--serve-cmd COMMAND --bench-cmd COMMAND [options]"
    example = f"{prog} --serve-cmd 'vllm-lite serve demo' --bench-cmd 'vllm-lite bench serve'"
    return OptionParser(prog, usage, SWEEPS["serve"], (SweepOptions,), examples=(example,))


def _choose(argv: Sequence[str], abouts: Mapping[str, str], usage: str, about: str) -> str | int:
    """The command that the first word names, or an exit code once help or an error is out."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        lines = [f"  {known:<16}{text}" for known, text in abouts.items()]
        sys.stdout.write(f"{usage}\n{about}\n\n" + "\n".join(lines) + "\n")
        return 0
    if name in abouts:
        return name
    if name in _ABSENT:
        cause = f"{name} is not available in this build; {_ABSENT[name]}"
    else:
        close = nearest(name, abouts)
        hint = f"did you mean {close}?" if close else f"choose from {', '.join(abouts)}"
        cause = f"unknown benchmark {name!r} ({hint})"
    sys.stderr.write(f"{usage}vllm-lite bench: error: {cause}\n")
    return 2


def parse_serve(argv: Sequence[str]) -> ServeOptions:
    """The options of `bench serve`; exits with code 2 or raises UsageError."""
    _, file_model, (given,) = benchmark_parser("serve").parse(argv, 0)
    if file_model is not None:
        given.setdefault("model", file_model)
    return make(ServeOptions, given)


def parse_engine(
    name: str, cls: type[EngineOptions], argv: Sequence[str]
) -> tuple[EngineOptions, EngineArgs]:
    """A benchmark's own options and its engine's; exits with code 2 or raises UsageError."""
    _, file_model, (own, engine) = benchmark_parser(name).parse(argv, 0)
    if file_model is not None:
        engine.setdefault("model", file_model)
    return make(cls, own), EngineArgs(**engine)


def benchmark_parser(name: str) -> OptionParser:
    engine = _ENGINE_BENCHMARKS.get(name)
    classes: tuple[type, ...] = (engine, VllmConfig) if engine else (ServeOptions,)
    prog = f"vllm-lite bench {name}"
    examples = (f"{prog} --model demo",)
    return OptionParser(prog, "[options]", BENCHMARKS[name], classes, examples=examples)
