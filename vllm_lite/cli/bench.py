"""`vllm-lite bench`: read the options of one benchmark, then run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from vllm_lite.bench.options import (
    LatencyOptions,
    ServeOptions,
    StartupOptions,
    ThroughputOptions,
    build,
)
from vllm_lite.config.cli import OptionParser
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig

# Benchmark -> what it is for.
BENCHMARKS = {
    "latency": "Time one batch in this process, again and again.",
    "throughput": "Generate for many prompts at once in this process.",
    "serve": "Load a running server, of whatever make, over its OpenAI API.",
    "startup": "Time how long the engine takes to start, cold and warm.",
}
# Benchmarks of an engine in this process, and what they are told beside its options.
_ENGINE_BENCHMARKS = {
    "latency": LatencyOptions,
    "throughput": ThroughputOptions,
    "startup": StartupOptions,
}
EngineOptions = LatencyOptions | ThroughputOptions | StartupOptions
_USAGE = "usage: vllm-lite bench [-h] {" + ",".join(BENCHMARKS) + "} ...\n"


def run(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names; returns the exit code."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        lines = [f"  {known:<12}{about}" for known, about in BENCHMARKS.items()]
        sys.stdout.write(f"{_USAGE}\nMeasure an engine.\n\n" + "\n".join(lines) + "\n")
        return 0
    if name not in BENCHMARKS:
        sys.stderr.write(
            f"{_USAGE}vllm-lite bench: error: unknown benchmark {name!r} "
            f"(choose from {', '.join(BENCHMARKS)})\n"
        )
        return 2
    words = argv[1:]
    if name == "serve":
        options = parse_serve(words)
        return int(_imported("serve").run_serve(options))
    own, engine_args = parse_engine(name, _ENGINE_BENCHMARKS[name], words)
    return int(getattr(_imported(name), f"run_{name}")(own, engine_args))


def parse_serve(argv: Sequence[str]) -> ServeOptions:
    """The options of `bench serve`; exits with code 2 or raises UsageError."""
    parser = _parser("serve", ServeOptions)
    words, file_model, (given,) = parser.parse(argv)
    _refuse_words(parser, words)
    if file_model is not None:
        given.setdefault("model", file_model)
    return build(ServeOptions, given)


def parse_engine(
    name: str, cls: type[EngineOptions], argv: Sequence[str]
) -> tuple[EngineOptions, EngineArgs]:
    """A benchmark's own options and its engine's; exits with code 2 or raises UsageError."""
    parser = _parser(name, cls, VllmConfig)
    words, file_model, (own, engine) = parser.parse(argv)
    _refuse_words(parser, words)
    if file_model is not None:
        engine.setdefault("model", file_model)
    return build(cls, own), EngineArgs(**engine)


def _parser(name: str, *classes: type) -> OptionParser:
    return OptionParser(f"vllm-lite bench {name}", "[options]", BENCHMARKS[name], classes)


def _refuse_words(parser: OptionParser, words: Sequence[str]) -> None:
    if words:
        parser.error(f"unrecognized arguments: {' '.join(words)}")


def _imported(name: str) -> Any:
    # Imported here: help and mistakes must not wait for the engine.
    return importlib.import_module(f"vllm_lite.bench.{name}")
