"""An experiment's directory: one folder for each combination, one file for each run.

`EXPERIMENT/COMBINATION/run=N.json` and `summary.json` there, `summary.csv` over all. A run
whose file exists is not run again.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vllm_lite.bench.options.sweep import ExperimentOptions
from vllm_lite.bench.report import write_json
from vllm_lite.bench.sweep.overrides import Overrides
from vllm_lite.errors import UsageError

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Options of one kind in a combination, such as SERVE or BENCH."""

    kind: str
    overrides: Overrides


class Experiment:
    """Where one sweep keeps its results."""

    def __init__(self, options: ExperimentOptions) -> None:
        """Makes nothing yet; raises UsageError where there are results not meant to be there."""
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

    def folder(self, *parts: Part, suffix: str = "") -> Path:
        """The folder of a combination."""
        words = [f"{part.kind}--{part.overrides.name}" for part in parts if part.overrides]
        return self.path / file_name("-".join([*words, *([suffix] if suffix else [])]) or "default")

    def is_done(self, folder: Path) -> bool:
        """Whether a combination has its summary."""
        return (folder / "summary.json").exists()

    def run(
        self, path: Path, parts: Sequence[Part], number: int, make: Callable[[Path], None]
    ) -> Record:
        """The results in `path`, which `make` writes unless it is there; raises UsageError."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
        record = read_record(path)
        record["run_number"] = number
        for part in parts:
            record |= part.overrides.record
        write_json(path, record)
        return record

    def summarise(self, folder: Path, records: Sequence[Record]) -> None:
        """Keep a combination's runs together."""
        if records:
            write_json(folder / "summary.json", list(records))
            self._records += records

    def note_failure(self, path: Path, error: Exception, about: Mapping[str, Any]) -> None:
        """Write why a run failed, and say so."""
        content = {**about, "error_type": type(error).__name__, "error": str(error)}
        write_json(path, content)
        sys.stderr.write(f"vllm-lite bench: {error}; noted in {path}\n")

    def close(self) -> None:
        """Write the table of all runs. Lists, such as latencies, are in the JSON files only."""
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


def read_record(path: Path) -> Record:
    """The object of a run's file; raises UsageError."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"the benchmark wrote no results to {path}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}; delete it to run again") from None
    if not isinstance(record, dict):
        raise UsageError(f"{path} holds no results; delete it to run again")
    return record


def file_name(text: str) -> str:
    """`text` without what would lead out of a folder."""
    return text.replace("/", "_").replace("..", "__").strip("'\"")
