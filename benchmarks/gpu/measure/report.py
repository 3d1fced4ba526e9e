"""Rows of results: as lines of JSON between processes, as a table on a screen, as one in a page.

    python benchmarks/gpu/measure/report.py RESULTS.json      the table of docs/gpu.md

A row is a figure with its share of a limit, or why there is none. On a screen, rows that differ in
their column alone are one line. Knows no section.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SECONDS, PERCENT, TIMES = "s", "%", "x"
# Most characters of a line's columns, and of its notes.
COLUMNS_WIDTH, NOTE_WIDTH = 80, 180


@dataclass(frozen=True, slots=True)
class Row:
    """`share` is judged against `goal`: at least that, or at most where `is_ceiling`."""

    section: str
    work: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    share_unit: str = PERCENT
    goal: float | None = None
    is_ceiling: bool = False
    # Why there is no figure, or what has to be known to read it.
    note: str = ""
    has_failed: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    # The case of `work` that this is, such as a number of rows.
    column: str = ""
    # What is compared with the value, in its unit.
    beside: dict[str, float] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """None where nothing is asked, or nothing was measured."""
        if self.has_failed:
            return False
        if self.share is None or self.goal is None:
            return None
        return self.share <= self.goal if self.is_ceiling else self.share >= self.goal

    @property
    def verdict(self) -> str:
        """Of `is_met`; FAILED where there is no figure for that."""
        if self.has_failed and self.value is None and self.share is None:
            return "FAILED"
        return {True: "yes", False: "NO", None: "-"}[self.is_met]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_met": self.is_met}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Row:
        return cls(**{name: value for name, value in found.items() if name != "is_met"})


HEADS = ["work", "value", "share", "goal", "met"]


def lines_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that are one line, in order: of one work, each with a column of its own."""
    found: dict[Hashable, list[Row]] = {}
    for place, row in enumerate(rows):
        found.setdefault((row.section, row.work, not row.column and place), []).append(row)
    return list(found.values())


def most_telling(rows: Sequence[Row], most: int) -> tuple[list[Row], int]:
    """The rows of `most` lines, and how many lines are left out: the last ones without a goal."""
    lines = lines_of(rows)
    plain = [line for line in lines if all(row.is_met is None for row in line)]
    count = min(max(0, len(lines) - most), len(plain))
    left = plain[len(plain) - count :]
    return [row for line in lines if line not in left for row in line], count


def cells(rows: Sequence[Row]) -> list[str]:
    """Work, value, share, goal and verdict of a line."""
    first = next((row for row in rows if row.value is not None or row.share is not None), rows[0])
    columns = one_line(" / ".join(row.column for row in rows), COLUMNS_WIDTH)
    goal = _amounts([row.goal for row in rows], first.share_unit)
    verdicts = [row.verdict for row in rows if row.verdict != "-"] or ["-"]
    verdict = verdicts[0]
    if len(set(verdicts)) > 1:
        counted = f"{verdicts.count('yes')} of {len(verdicts)}"
        verdict = "FAILED" if "FAILED" in verdicts else counted
    return [
        f"{first.work}: {columns}" if columns else first.work,
        _side_by_side([row.value for row in rows], ".4g", f" {first.unit}".rstrip()),
        _amounts([row.share for row in rows], first.share_unit),
        f"{'<=' if first.is_ceiling else '>='} {goal}" if goal else "",
        verdict,
    ]


def notes(rows: Sequence[Row]) -> str:
    """Of a line: what is beside its values, and the rows' notes, those of failures first."""
    names = dict.fromkeys(name for row in rows for name in row.beside)
    unit = next((f" {row.unit}".rstrip() for row in rows if row.beside), "")
    found = [
        f"{name}: {_side_by_side([row.beside.get(name) for row in rows], '.3g', unit)}"
        for name in names
    ]
    noted = sorted((row for row in rows if row.note), key=lambda row: not row.has_failed)
    if len(noted) == len(rows) and len({row.note for row in noted}) == 1:
        return "; ".join([*found, noted[0].note])
    return "; ".join([*found, *(f"{row.column}: {row.note}" for row in noted)])


def _amounts(numbers: Sequence[float | None], unit: str) -> str:
    if unit == PERCENT:
        numbers = [None if number is None else 100 * number for number in numbers]
        return _side_by_side(numbers, ".1f", " %")
    return _side_by_side(numbers, ".2f", " s" if unit == SECONDS else unit)


def _side_by_side(numbers: Sequence[float | None], style: str, unit: str) -> str:
    """Numbers of one unit, once where all are the same; nothing where there is none."""
    texts = ["-" if number is None else format(number, style) for number in numbers]
    if set(texts) == {"-"}:
        return ""
    return " / ".join(texts if len(set(texts)) > 1 else texts[:1]) + unit


def table(rows: Sequence[Row]) -> str:
    """For a screen; notes follow their line's cells."""
    groups = lines_of(rows)
    lines = [HEADS, *map(cells, groups)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    text = []
    for line, note in zip(lines, ["", *map(notes, groups)], strict=True):
        padded = [
            cell.ljust(width) if column in (0, 4) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join([*padded, one_line(note, NOTE_WIDTH)]).rstrip())
    return "\n".join(text)


def markdown(record: dict[str, Any]) -> str:
    """The table of a page, from the JSON that run.py wrote."""
    if record["is_dry_run"]:
        raise SystemExit("these results are a dry run's: nothing was measured")
    rows = [Row.from_json(found) for found in record["rows"]]
    lines = [" | ".join([*HEADS, "note"]), " | ".join(["---"] * (len(HEADS) + 1))]
    for row in rows:
        line = [*cells([row]), notes([row])]
        lines.append(" | ".join(cell.replace("|", "/") for cell in line))
    head = f"{record['device']}, {record['date']}, {_versions(record)}:"
    return "\n".join([head, "", *(f"| {line} |" for line in lines)])


def _versions(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in record["versions"].items())


def one_line(text: object, limit: int = 300) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add lines that read_rows gives back, also after the writer was killed."""
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(row.to_json()) + "\n")


def read_rows(path: Path) -> list[Row]:
    """Read the rows written so far, without an incomplete last line."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    return [Row.from_json(json.loads(line)) for line in whole.splitlines()]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit((__doc__ or "").split("\n")[2].strip())
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
