"""`bench sweep serve`: runs each combination of server and load options several times."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from vllm_lite.bench.options.sweep import SweepOptions
from vllm_lite.bench.report import write_json
from vllm_lite.bench.sweep.commands import (
    Overrides,
    SweptServer,
    read_overrides,
    run_command,
    serving,
    show_command,
)
from vllm_lite.errors import UsageError

Record = dict[str, Any]
_METRICS = ("--percentile-metrics", "ttft,tpot,itl,e2el")


class Experiment:
    def __init__(self, options: SweepOptions) -> None:
        """Raises UsageError if there are results already and --resume is not given."""
        name = options.experiment_name or datetime.now().strftime("%Y%m%d_%H%M%S")
        self.path = Path(options.output_dir).expanduser() / name
        if options.resume and not self.path.exists():
            raise UsageError(f"--resume: there is no experiment at {self.path}")
        if not options.resume and self.path.exists():
            raise UsageError(
                f"{self.path} exists already; add --resume, or give another --experiment-name"
            )
        self.is_dry = options.dry_run
        self._records: list[Record] = []

    def folder(self, serve: Overrides, bench: Overrides | None = None) -> Path:
        """The folder of a combination, or of all those of one server."""
        parts = (("SERVE", serve), ("BENCH", bench))
        name = "-".join(f"{kind}--{part.name}" for kind, part in parts if part) or "default"
        # No name may lead out of the experiment's folder.
        return self.path / name.replace("/", "_").replace("..", "__").strip("'\"")

    def is_done(self, folder: Path) -> bool:
        return (folder / "summary.json").exists()

    def run(self, path: Path, about: Mapping[str, Any], make: Callable[[], None]) -> Record:
        """The results in `path`, which `make` writes unless it exists; raises UsageError."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            make()
        record = {**_read_record(path), **about}
        write_json(path, record)
        return record

    def summarise(self, folder: Path, records: Sequence[Record]) -> None:
        if records:
            write_json(folder / "summary.json", list(records))
            self._records += records

    def note_failure(self, path: Path, error: Exception, about: Mapping[str, Any]) -> None:
        """Write the cause of a failure to `path` and print it."""
        content = {**about, "error_type": type(error).__name__, "error": str(error)}
        write_json(path, content)
        sys.stderr.write(f"vllm-lite bench: {error}; noted in {path}\n")

    def close(self) -> None:
        """Write the table of all runs, without lists such as latencies."""
        if self.is_dry:
            sys.stdout.write(f"Results would be under {self.path}\n")
            return
        columns = list(dict.fromkeys(key for record in self._records for key in record))
        columns = [
            key
            for key in columns
            if not any(isinstance(record.get(key), list | dict) for record in self._records)
        ]
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "summary.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["", *columns])
            for number, record in enumerate(self._records):
                writer.writerow([number, *(record.get(key) for key in columns)])
        sys.stdout.write(f"{len(self._records)} runs are under {self.path}\n")


def _read_record(path: Path) -> Record:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"the benchmark wrote no results to {path}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}; delete it to run again") from None
    if not isinstance(record, dict):
        raise UsageError(f"{path} holds no results; delete it to run again")
    return record


def run_sweep_serve(options: SweepOptions) -> int:
    servers = read_overrides("--serve-params", options.serve_params)
    loads = read_overrides("--bench-params", options.bench_params)
    experiment = Experiment(options)
    try:
        for serve in servers:
            _Server(options, experiment, serve).run(loads)
    except BaseException:
        if experiment.path.exists():
            sys.stderr.write(
                f"vllm-lite bench: stopped early; continue with --experiment-name "
                f"{experiment.path.name} --resume\n"
            )
        raise
    experiment.close()
    return 0


class _Server:
    """All combinations of one server's options."""

    def __init__(self, options: SweepOptions, experiment: Experiment, serve: Overrides) -> None:
        self._options = options
        self._experiment = experiment
        self._serve = serve

    def run(self, loads: list[Overrides]) -> None:
        """Run the loads that are linked with this server; it starts only if one has no results."""
        links = self._options.links
        values = [(self._serve.get(ours), theirs) for ours, theirs in links]
        loads = [
            load
            for load in loads
            if all(value is not None and value == load.get(name) for value, name in values)
        ]
        folders = [self._experiment.folder(self._serve, load) for load in loads]
        is_needed = not all(map(self._experiment.is_done, folders))
        with self._server() if is_needed else nullcontext() as server:
            for load, folder in zip(loads, folders, strict=True):
                self._run_combination(server, load, folder)

    @contextmanager
    def _server(self) -> Iterator[SweptServer | None]:
        """The running server; None in a dry run or where it failed to start."""
        options, experiment = self._options, self._experiment
        words = self._serve.apply(options.serve_words)
        sys.stdout.write(f"Server: {self._serve.text}\n")
        show_command(words)
        if options.dry_run:
            yield None
            return
        experiment.path.mkdir(parents=True, exist_ok=True)
        name = experiment.folder(self._serve).name
        log = None if options.show_stdout else experiment.path / f"{name}.log"
        with ExitStack() as stack:
            found: SweptServer | None = None
            try:
                found = stack.enter_context(serving(words, options.server_ready_timeout, log))
            except UsageError as error:
                if not options.continue_on_error:
                    raise
                about = {"serve_overrides": self._serve.record}
                experiment.note_failure(experiment.path / f"{name}-failure.json", error, about)
            yield found

    def _run_combination(self, server: SweptServer | None, load: Overrides, folder: Path) -> None:
        options = self._options
        sys.stdout.write(f"Load: {load.text}\n")
        if server is not None or options.dry_run:
            if options.warmup_num_prompts:
                warmup = load.having(num_prompts=options.warmup_num_prompts)
                self._run(server, warmup, folder / "warmup.json", -1)
        elif not self._experiment.is_done(folder):
            return  # the server did not start
        paths = [folder / f"run={number}.json" for number in range(options.num_runs)]
        runs = [self._run(server, load, path, number) for number, path in enumerate(paths)]
        self._experiment.summarise(folder, [record for record in runs if record is not None])

    def _run(
        self, server: SweptServer | None, load: Overrides, path: Path, number: int
    ) -> Record | None:
        options = self._options
        words = [*load.apply(options.bench_words), *_METRICS, "--save-result"]
        words += ["--result-dir", str(path.parent), "--result-filename", path.name]

        def make() -> None:
            show_command(words)
            run_command(words, show_stdout=options.show_stdout)
            if options.after_bench_words:
                run_command(options.after_bench_words, show_stdout=options.show_stdout)
            elif server is not None:
                server.reset_caches()

        if options.dry_run:
            show_command(words)
            return None
        about: dict[str, Any] = {"run_number": number}
        try:
            return self._experiment.run(path, {**about, **self._serve.record, **load.record}, make)
        except UsageError as error:
            if not options.continue_on_error:
                raise
            about |= {"serve_overrides": self._serve.record, "bench_overrides": load.record}
            self._experiment.note_failure(path.with_suffix(".failure.json"), error, about)
            return None
