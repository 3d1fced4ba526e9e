"""Measurements in a file: records of each round, and what follows from them.

Medians over rounds, how many times better ours is, and which targets hold are computed from the
records when they are asked for, so that a file can be added to. Knows no process.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.workloads import (
    LARGE_STEP_BYTES,
    PAIRS,
    ROWS,
    TARGET_RATIOS,
    TARGET_VALUES,
    Row,
)

Figures = dict[str, float]


@dataclass(slots=True)
class Results:
    """Everything that a results file holds."""

    machine: dict[str, Any]
    # By engine: its version, its settings, and what it said at start.
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Bytes of the demo model's weights, by engine.
    weight_bytes: dict[str, int] = field(default_factory=dict)
    limits: list[Figures] = field(default_factory=list)
    # {round, engine, work, values} or {round, engine, work, error}
    records: list[dict[str, Any]] = field(default_factory=list)
    # Sessions that were run to their end: [round, engine, session].
    done: list[list[Any]] = field(default_factory=list)

    def add(self, turn: int, engine: str, work: str, **content: Any) -> None:
        """Keep one record; it takes the place of an older one of the same."""
        same = (turn, engine, work)
        self.records = [r for r in self.records if (r["round"], r["engine"], r["work"]) != same]
        self.records.append({"round": turn, "engine": engine, "work": work, **content})

    def set_bandwidth(self, turn: int, engine: str, gb_s: float) -> None:
        """Note what memory gave just before and after the steps that were measured last."""
        for record in self.records:
            values = record.get("values", {})
            is_theirs = record["round"] == turn and record["engine"] == engine
            if is_theirs and gb_s and "step_ms" in values:
                values.setdefault("read_gb_s", round(gb_s, 1))

    def values(self, row: Row, engine: str) -> list[float]:
        """One value for each round that has one."""
        work, _, name = row.name.partition(".")
        if name == "floor_share":
            return self._floor_shares(work, engine)
        found = [r for r in self.records if r["engine"] == engine and r["work"] == work]
        return [r["values"][name] for r in found if name in r.get("values", {})]

    def median(self, row: Row, engine: str) -> float | None:
        """Over the rounds; None where no round has a value."""
        values = self.values(row, engine)
        return statistics.median(values) if values else None

    def errors(self) -> Iterator[str]:
        """A line for each measurement that failed."""
        for record in self.records:
            if "error" in record:
                where = f"round {record['round']}, {record['engine']}, {record['work']}"
                yield f"{where}: {record['error']}"

    def read_gb_s(self) -> tuple[float, float] | None:
        """The lowest and the highest read bandwidth that was measured."""
        found = [one["read_gb_s"] for one in self.limits]
        return (min(found), max(found)) if found else None

    def _floor_shares(self, work: str, engine: str) -> list[float]:
        """The time that reading the weights once would take, as a share of a step's.

        At the bandwidth that was measured beside the step.
        """
        is_large = work.startswith("large-")
        weights = LARGE_STEP_BYTES if is_large else self.weight_bytes.get(engine, 0)
        found = [r for r in self.records if r["engine"] == engine and r["work"] == work]
        steps = [r["values"] for r in found if "read_gb_s" in r.get("values", {})]
        return [weights / (step["read_gb_s"] * 1e6) / step["step_ms"] for step in steps if weights]

    @property
    def num_rounds(self) -> int:
        """Rounds that have a record."""
        return len({record["round"] for record in self.records})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: ours, its peer, and what was aimed at."""

    row: Row
    engine: str
    peer: str
    ours: float
    theirs: float | None
    ratio: float | None
    target: str
    # None where there is no target.
    is_met: bool | None


def lines(results: Results) -> Iterator[Line]:
    """A line for each figure of ours, those of one pair of engines after the other."""
    for engine, peer in PAIRS:
        for row in ROWS:
            ours, theirs = results.median(row, engine), results.median(row, peer)
            if ours is None:
                continue
            ratio = None
            if row.is_compared and theirs is not None and ours > 0 and theirs > 0:
                ratio = row.times_better(ours, theirs)
            target, is_met = _judge(row, engine, ours, ratio)
            yield Line(row, engine, peer, ours, theirs, ratio, target, is_met)


def _judge(row: Row, engine: str, ours: float, ratio: float | None) -> tuple[str, bool | None]:
    key = (row.name, engine)
    wanted, limit = TARGET_RATIOS.get(key), TARGET_VALUES.get(key)
    verdicts: list[bool] = []
    texts: list[str] = []
    if wanted is not None:
        texts.append(f"{wanted:g} x")
        verdicts += [] if ratio is None else [ratio >= wanted]
    if limit is not None:
        texts.append(f"{'<=' if row.is_less_better else '>='} {limit:g} {row.unit}".strip())
        verdicts.append(ours <= limit if row.is_less_better else ours >= limit)
    return ", ".join(texts), all(verdicts) if verdicts else None


def table(results: Results) -> str:
    """The lines as text in Markdown, each pair of engines with its weights above it."""
    found: list[str] = []
    named = {engine: about["title"] for engine, about in results.engines.items()}
    for engine, peer in PAIRS:
        shown = [line for line in lines(results) if line.engine == engine]
        if not shown:
            continue
        title = f"{results.engines[engine]['weights']}, medians of {results.num_rounds} round(s)"
        found += [f"### {title}", ""]
        found.append(f"| work | ours | {named.get(peer, peer)} | times better | target | met |")
        found.append("| --- | ---: | ---: | ---: | --- | --- |")
        found += [_text(line) for line in shown]
        found.append("")
    if bandwidth := results.read_gb_s():
        low, high = bandwidth
        found.append(
            f"Read bandwidth measured between them: {low:.1f} to {high:.1f} GB/s. Shares of the "
            "floor are of what was measured just before and after."
        )
    return "\n".join(found)


def _text(line: Line) -> str:
    theirs = "-" if line.theirs is None else _number(line.theirs)
    ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
    met = {True: "yes", False: "no", None: ""}[line.is_met]
    title = f"{line.row.title}, {line.row.unit}" if line.row.unit else line.row.title
    return f"| {title} | {_number(line.ours)} | {theirs} | {ratio} | {line.target} | {met} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def save(results: Results, path: Path) -> None:
    """Write everything, with the medians that follow from it, in one move."""
    content = {
        "machine": results.machine,
        "engines": results.engines,
        "weight_bytes": results.weight_bytes,
        "limits": results.limits,
        "medians": {
            row.name: {
                engine: round(value, 4)
                for engine in results.engines
                if (value := results.median(row, engine)) is not None
            }
            for row in ROWS
        },
        "times_better": {
            f"{line.row.name}, {line.engine} against {line.peer}": round(line.ratio, 3)
            for line in lines(results)
            if line.ratio is not None
        },
        "records": results.records,
        "done": results.done,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    written.write_text(json.dumps(content, indent=1) + "\n")
    written.replace(path)


def load(path: Path, machine: dict[str, Any]) -> Results:
    """Results of a file, to continue; empty where there is none."""
    if not path.exists():
        return Results(machine)
    content = json.loads(path.read_text())
    names = ("machine", "engines", "weight_bytes", "limits", "records", "done")
    return Results(**{name: content[name] for name in names})
