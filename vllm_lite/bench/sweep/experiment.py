"""An experiment's directory: a folder for each combination with a file for each run.

`EXPERIMENT/COMBINATION/run=N.json` and `summary.json`, and `EXPERIMENT/summary.csv` over all. A
run whose file exists is not repeated.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from vllm_lite.bench.options.sweep import SweepOptions
from vllm_lite.bench.report import write_json
from vllm_lite.bench.sweep.overrides import Overrides
from vllm_lite.errors import UsageError

Record = dict[str, Any]


class Experiment:
    """The results of one sweep."""

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
        """Whether a combination has a summary."""
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
        """Write a combination's runs to its summary."""
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
