"""Measurements in a file: records of each round, and what follows from them.

Medians over rounds, how many times better ours is, its shares of the floor, and which targets hold
are computed from the records when they are asked for, so that a file can be added to. Knows no
process.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels.limits import Limits

from peers.floors import floor_share
from peers.workloads import (
    PAIRS,
    ROWS,
    TARGET_RATIOS,
    TARGET_SHARES,
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
    # {round, engine, work, values} or {round, engine, work, error}; ours have the limits that were
    # measured beside them.
    records: list[dict[str, Any]] = field(default_factory=list)
    # Sessions that were run to their end: [round, engine, session].
    done: list[list[Any]] = field(default_factory=list)

    def add(self, turn: int, engine: str, work: str, **content: Any) -> None:
        """Keep one record; it takes the place of an older one of the same."""
        same = (turn, engine, work)
        self.records = [r for r in self.records if (r["round"], r["engine"], r["work"]) != same]
        self.records.append({"round": turn, "engine": engine, "work": work, **content})

    def set_limits(self, turn: int, engine: str, limits: Figures) -> None:
        """Note what the machine gave just before and after what was measured last."""
        for record in self.records:
            if (record["round"], record["engine"]) == (turn, engine) and "values" in record:
                record.setdefault("limits", limits)

    def values(self, row: Row, engine: str) -> list[float]:
        """One value for each round that has one."""
        return [value for value, _ in self._measured(row, engine)]

    def _measured(self, row: Row, engine: str) -> Iterator[tuple[float, dict[str, Any]]]:
        """Values with their records."""
        work, _, name = row.name.partition(".")
        for record in self.records:
            is_of_it = (record["engine"], record["work"]) == (engine, work)
            if is_of_it and name in record.get("values", {}):
                yield record["values"][name], record

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

    def floor_share(self, row: Row, engine: str) -> float | None:
        """The median share of the floor that a row of ours reaches; None where it has none."""
        weights = self.weight_bytes.get(engine, 0)
        found: list[float] = []
        for value, record in self._measured(row, engine):
            if (limits := self._limits(record)) is not None:
                share = floor_share(row, engine, value, weights, limits)
                found += [] if share is None else [share]
        return statistics.median(found) if found else None

    def _limits(self, record: dict[str, Any]) -> Limits | None:
        """Those beside a record; where none were measured there, the run's medians."""
        if "limits" in record:
            return Limits(**record["limits"])
        if not self.limits:
            return None
        usual = {
            name: statistics.median(one[name] for one in self.limits) for name in self.limits[0]
        }
        # Older files have the bandwidth alone beside a step.
        usual["read_gb_s"] = record["values"].get("read_gb_s", usual["read_gb_s"])
        return Limits(**usual)

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
    floor_share: float | None
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
            if theirs is not None and ours > 0 and theirs > 0:
                ratio = row.times_better(ours, theirs)
            share = results.floor_share(row, engine)
            target, is_met = _judge(row, engine, ours, ratio, share)
            yield Line(row, engine, peer, ours, theirs, ratio, share, target, is_met)


def _judge(
    row: Row, engine: str, ours: float, ratio: float | None, share: float | None
) -> tuple[str, bool | None]:
    key = (row.name, engine)
    wanted, limit, least = (
        targets.get(key) for targets in (TARGET_RATIOS, TARGET_VALUES, TARGET_SHARES)
    )
    verdicts: list[bool] = []
    texts: list[str] = []
    if wanted is not None:
        texts.append(f"{wanted:g} x")
        verdicts += [] if ratio is None else [ratio >= wanted]
    if limit is not None:
        texts.append(f"{'<=' if row.is_less_better else '>='} {limit:g} {row.unit}".strip())
        verdicts.append(ours <= limit if row.is_less_better else ours >= limit)
    if least is not None:
        texts.append(f"{100 * least:.0f} % of the floor")
        verdicts += [] if share is None else [share >= least]
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
        peer_title = named.get(peer, peer)
        found.append(f"| work | ours | {peer_title} | times better | of the floor | target | met |")
        found.append("| --- | ---: | ---: | ---: | ---: | --- | --- |")
        found += [_text(line) for line in shown]
        found.append("")
    if bandwidth := results.read_gb_s():
        low, high = bandwidth
        found.append(
            f"Read bandwidth measured between them: {low:.1f} to {high:.1f} GB/s. The floor is the "
            "time that a row's bytes (weights, keys and values) and operations take at least, at "
            "what was measured just before and after it, or else in the median."
        )
    return "\n".join(found)


def _text(line: Line) -> str:
    theirs = "-" if line.theirs is None else _number(line.theirs)
    ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
    met = {True: "yes", False: "no", None: ""}[line.is_met]
    title = f"{line.row.title}, {line.row.unit}" if line.row.unit else line.row.title
    share = "-" if line.floor_share is None else f"{100 * line.floor_share:.0f} %"
    cells = (title, _number(line.ours), theirs, ratio, share, line.target, met)
    return f"| {' | '.join(cells)} |"


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
        "floor_shares": {
            f"{line.row.name}, {line.engine}": round(line.floor_share, 3)
            for line in lines(results)
            if line.floor_share is not None
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
