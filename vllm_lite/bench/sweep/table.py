"""The runs of an experiment as rows: read, filtered, binned and grouped."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vllm_lite.errors import UsageError

Row = Mapping[str, Any]
Group = tuple[tuple[str, str], ...]
# Longer ones first: `<=` holds a `<`.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
# Where a row was read from: the runs of one combination have it in common.
SOURCE = "_source"


def read_rows(folder: Path) -> list[Row]:
    """Every run of every summary under `folder`; raises UsageError where there is none."""
    rows: list[Row] = []
    for path in sorted(folder.rglob("summary.json")):
        try:
            records = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        rows += [{**record, SOURCE: str(path)} for record in records]
    if not rows:
        raise UsageError(f"there are no results of a sweep under {folder}")
    return rows


def names(text: str | None) -> list[str]:
    """The variables of a comma-separated list."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def number(row: Row, name: str) -> float | None:
    """A variable as a finite number; None where it is none."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) else None


def check_names(rows: Sequence[Row], wanted: Sequence[str]) -> None:
    """Raise UsageError unless every run has the variables."""
    for name in wanted:
        if not all(name in row for row in rows):
            known = set.intersection(*(set(row) for row in rows)) - {SOURCE}
            shown = sorted(k for k in known if not isinstance(rows[0][k], list | dict))
            raise UsageError(f"not every run has {name}; they have {', '.join(shown)}")


def grouped(rows: Sequence[Row], by: Sequence[str]) -> dict[Group, list[Row]]:
    """Rows by the values of the variables `by`, in the order of their first one."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple((name, str(row[name])) for name in by), []).append(row)
    return groups


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions such as `max_concurrency<100` that a run must meet."""

    conditions: tuple[tuple[str, str, str], ...]

    @staticmethod
    def parse(text: str) -> Filters:
        """The conditions of --filter-by; raises UsageError."""
        conditions = []
        for word in names(text):
            sign = next((sign for sign in _OPERATORS if sign in word), None)
            if sign is None:
                raise UsageError(f"--filter-by {word!r} has none of {' '.join(_OPERATORS)}")
            name, _, value = word.partition(sign)
            conditions.append((name.strip(), sign, value.strip()))
        return Filters(tuple(conditions))

    @property
    def names(self) -> list[str]:
        """The variables that are looked at."""
        return [name for name, _, _ in self.conditions]

    def keep(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that meet every condition."""
        return [row for row in rows if all(_holds(row, *one) for one in self.conditions)]


@dataclass(frozen=True, slots=True)
class Bins:
    """Variables whose values are rounded down to a multiple."""

    sizes: tuple[tuple[str, float], ...]

    @staticmethod
    def parse(text: str) -> Bins:
        """The sizes of --bin-by; raises UsageError."""
        sizes = []
        for word in names(text):
            name, sign, value = word.partition("%")
            try:
                size = float(value)
            except ValueError:
                size = 0.0
            if not sign or not size > 0:
                raise UsageError(f"--bin-by {word!r} is not such as request_throughput%1")
            sizes.append((name.strip(), size))
        return Bins(tuple(sizes))

    @property
    def names(self) -> list[str]:
        """The variables that are rounded."""
        return [name for name, _ in self.sizes]

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """Rows with rounded values."""
        return [
            {
                **row,
                **{
                    n: value // size * size
                    for n, size in self.sizes
                    if (value := number(row, n)) is not None
                },
            }
            for row in rows
        ]


def _holds(row: Row, name: str, sign: str, value: str) -> bool:
    compare = _OPERATORS[sign]
    ours, theirs = number(row, name), number({name: value}, name)
    if ours is not None and theirs is not None:
        return bool(compare(ours, theirs))
    return sign in ("==", "!=") and bool(compare(str(row.get(name)), value))
