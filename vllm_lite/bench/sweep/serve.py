"""`bench sweep serve`: every combination of a server's options and a load's, several times."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vllm_lite.bench.options.sweep import SweepServeOptions
from vllm_lite.bench.sweep.commands import SweptServer, run_command, serving, show_command
from vllm_lite.bench.sweep.experiment import Experiment, Part, Record
from vllm_lite.bench.sweep.overrides import Overrides, read_overrides
from vllm_lite.errors import UsageError

# What the figures of a sweep are made of.
_METRICS = ("--percentile-metrics", "ttft,tpot,itl,e2el")


def run_sweep_serve(options: SweepServeOptions) -> int:
    """Run the sweep; raises UsageError."""
    sweep = ServeSweep(options)
    loads = read_overrides("--bench-params", options.bench_params)
    with sweep.keeping():
        for serve in sweep.servers:
            wanted = [load for load in loads if sweep.is_linked(serve, load)]
            with sweep.server(serve, is_needed=sweep.needs_server(serve, wanted)) as server:
                for load in wanted:
                    sweep.run_combination(server, serve, load)
    return 0


class ServeSweep:
    """Runs combinations one by one and keeps what came of them."""

    def __init__(self, options: SweepServeOptions) -> None:
        self._options = options
        self.servers = read_overrides("--serve-params", options.experiment.serve_params)
        self._experiment = Experiment(options.experiment)

    @property
    def is_dry(self) -> bool:
        """Whether commands are printed only."""
        return self._experiment.is_dry

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Write the summary in the end, or say how to go on where the sweep breaks off."""
        try:
            yield
        except BaseException:
            if self._experiment.path.exists():
                sys.stderr.write(
                    f"vllm-lite bench: stopped early; go on with --experiment-name "
                    f"{self._experiment.path.name} --resume\n"
                )
            raise
        self._experiment.close()

    def is_linked(self, serve: Overrides, load: Overrides) -> bool:
        """Whether the linked options of a combination are equal."""
        return all(
            serve.get(ours) is not None and serve.get(ours) == load.get(theirs)
            for ours, theirs in self._options.links
        )

    def needs_server(self, serve: Overrides, loads: Sequence[Overrides]) -> bool:
        """Whether any of the combinations has yet to run."""
        return any(not self._experiment.is_done(self._folder(serve, load)) for load in loads)

    @contextmanager
    def server(self, serve: Overrides, *, is_needed: bool = True) -> Iterator[SweptServer | None]:
        """The server of a combination; None where nothing will be asked of it."""
        words = serve.apply(self._options.serve_words)
        if not is_needed:
            yield None
            return
        sys.stdout.write(f"Server: {serve.text}\n")
        show_command(words)
        if self.is_dry:
            yield None
            return
        name = self._experiment.folder(Part("SERVE", serve)).name
        log = None if self._shows else self._experiment.path / f"{name}.log"
        self._experiment.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            found: SweptServer | None = None
            try:
                limit = self._options.server_ready_timeout
                found = stack.enter_context(serving(words, limit, log))
            except UsageError as error:
                if not self._options.continue_on_error:
                    raise
                path = self._experiment.path / f"{name}-failure.json"
                self._experiment.note_failure(path, error, {"serve_overrides": serve.record})
            yield found

    def run_combination(
        self, server: SweptServer | None, serve: Overrides, load: Overrides, suffix: str = ""
    ) -> list[Record]:
        """The runs of one combination; those that succeeded."""
        options = self._options
        folder = self._folder(serve, load, suffix)
        sys.stdout.write(f"Load: {load.text}\n")
        if server is not None or self.is_dry:
            if options.warmup_num_prompts:
                warmup = load.having(num_prompts=options.warmup_num_prompts)
                self._run(server, serve, warmup, folder / "warmup.json", -1)
        elif not self._experiment.is_done(folder):
            return []  # the server could not be started
        paths = [folder / f"run={number}.json" for number in range(options.num_runs)]
        runs = [self._run(server, serve, load, path, n) for n, path in enumerate(paths)]
        records = [record for record in runs if record is not None]
        self._experiment.summarise(folder, records)
        return records

    def _run(
        self,
        server: SweptServer | None,
        serve: Overrides,
        load: Overrides,
        path: Path,
        number: int,
    ) -> Record | None:
        words = [*load.apply(self._options.bench_words), *_METRICS, "--save-result"]
        words += ["--result-dir", str(path.parent), "--result-filename", path.name]

        def make(_: Path) -> None:
            show_command(words)
            run_command(words, show_stdout=self._shows)
            self._after(server)

        if self.is_dry:
            show_command(words)
            return None
        parts = [Part("SERVE", serve), Part("BENCH", load)]
        try:
            return self._experiment.run(path, parts, number, make)
        except UsageError as error:
            if not self._options.continue_on_error:
                raise
            about = {"run_number": number, "serve_overrides": serve.record}
            about["bench_overrides"] = load.record
            self._experiment.note_failure(path.with_suffix(".failure.json"), error, about)
            return None

    def _after(self, server: SweptServer | None) -> None:
        if self._options.after_bench_words:
            run_command(self._options.after_bench_words, show_stdout=self._shows)
        elif server is not None:
            server.reset_caches()

    def _folder(self, serve: Overrides, load: Overrides, suffix: str = "") -> Path:
        return self._experiment.folder(Part("SERVE", serve), Part("BENCH", load), suffix=suffix)

    @property
    def _shows(self) -> bool:
        return self._options.experiment.show_stdout
