"""`bench sweep startup`: the time to start over combinations of an engine's options."""

from __future__ import annotations

import sys
from pathlib import Path

from vllm_lite.bench.options import StartupOptions
from vllm_lite.bench.options.sweep import SweepStartupOptions
from vllm_lite.bench.sweep.commands import run_command, show_command
from vllm_lite.bench.sweep.experiment import Experiment, Part
from vllm_lite.bench.sweep.overrides import Overrides, read_overrides
from vllm_lite.config.option import option_table
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError


def run_sweep_startup(options: SweepStartupOptions) -> int:
    """Run the sweep; raises UsageError."""
    is_strict = options.strict_params
    engines = [
        _known(one, is_strict)
        for one in read_overrides("--serve-params", options.experiment.serve_params)
    ]
    starts = [
        _known(one, is_strict) for one in read_overrides("--startup-params", options.startup_params)
    ]
    experiment = Experiment(options.experiment)
    try:
        for engine in engines:
            for start in starts:
                _run_combination(experiment, engine, start, options)
    except BaseException:
        if experiment.path.exists():
            sys.stderr.write(
                f"vllm-lite bench: stopped early; go on with --experiment-name "
                f"{experiment.path.name} --resume\n"
            )
        raise
    experiment.close()
    return 0


def _run_combination(
    experiment: Experiment, engine: Overrides, start: Overrides, options: SweepStartupOptions
) -> None:
    parts = [Part("SERVE", engine), Part("STARTUP", start)]
    folder = experiment.folder(*parts)
    sys.stdout.write(f"Start: {engine.text}; {start.text}\n")
    records = []
    for number in range(options.num_runs):
        path = folder / f"run={number}.json"
        words = engine.having(**start.values).apply(options.startup_words)
        words = Overrides({"output_json": str(path)}).apply(words)

        def make(_: Path, words: list[str] = words) -> None:
            show_command(words)
            run_command(words, show_stdout=options.experiment.show_stdout)

        if experiment.is_dry:
            show_command(words)
        else:
            records.append(experiment.run(path, parts, number, make))
    experiment.summarise(folder, records)


def _known(one: Overrides, is_strict: bool) -> Overrides:
    """`one` without what `bench startup` does not know, which is told; raises if strict."""
    known = {"config", *option_table(VllmConfig), *option_table(StartupOptions)}
    unknown = [key for key in one.values if key.partition(".")[0].replace("-", "_") not in known]
    if not unknown:
        return one
    text = f"bench startup does not know {', '.join(unknown)} of {one.name}"
    if is_strict:
        raise UsageError(f"{text}; leave them out, or drop --strict-params")
    sys.stderr.write(f"vllm-lite bench: {text}; left out\n")
    return one.without(unknown)
