"""Rows of results: as lines of JSON between processes, as a table on a screen, as one in a page.

    python benchmarks/gpu/measure/report.py RESULTS.json      the table of docs/gpu.md

A row is a figure with its share of a limit, or why there is none. Knows no section.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SECONDS, PERCENT, TIMES = "s", "%", "x"


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

    @property
    def is_met(self) -> bool | None:
        """None where nothing is asked, or nothing was measured."""
        if self.has_failed:
            return False
        if self.share is None or self.goal is None:
            return None
        return self.share <= self.goal if self.is_ceiling else self.share >= self.goal

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_met": self.is_met}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Row:
        return cls(**{name: value for name, value in found.items() if name != "is_met"})


def cells(row: Row) -> list[str]:
    """Work, value, share, goal, verdict."""
    value = "" if row.value is None else f"{row.value:.4g} {row.unit}".strip()
    sign = "<=" if row.is_ceiling else ">="
    goal = "" if row.goal is None else f"{sign} {_amount(row.goal, row.share_unit)}"
    share = "" if row.share is None else _amount(row.share, row.share_unit)
    if row.value is None and row.share is None:
        verdict = "FAILED" if row.has_failed else "-"
    else:
        verdict = {True: "yes", False: "NO", None: "-"}[row.is_met]
    return [row.work, value, share, goal, verdict]


def _amount(number: float, unit: str) -> str:
    if unit == PERCENT:
        return f"{100 * number:.1f} %"
    return f"{number:.2f}{' ' if unit == SECONDS else ''}{unit}"


HEADS = ["work", "value", "share", "goal", "met"]


def table(rows: Sequence[Row]) -> str:
    """For a screen; notes follow their row's cells."""
    lines = [HEADS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    notes = ["", *(row.note for row in rows)]
    text = []
    for line, note in zip(lines, notes, strict=True):
        padded = [
            cell.ljust(width) if column in (0, 4) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join([*padded, one_line(note, 110)]).rstrip())
    return "\n".join(text)


def markdown(record: dict[str, Any]) -> str:
    """The table of a page, from the JSON that run.py wrote."""
    if record["is_dry_run"]:
        raise SystemExit("these results are a dry run's: nothing was measured")
    rows = [Row.from_json(found) for found in record["rows"]]
    lines = [" | ".join([*HEADS, "note"]), " | ".join(["---"] * (len(HEADS) + 1))]
    for row in rows:
        lines.append(" | ".join(cell.replace("|", "/") for cell in [*cells(row), row.note]))
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
