"""One combination of options: read from a parameter file, put into a command line.

Options may be spelled with dashes or underscores; a value replaces what the command had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_lite.errors import UsageError

# A record may name itself, instead of being named after its values.
_NAME = "_benchmark_name"


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options and their values, with a name for people and files."""

    values: Mapping[str, Any] = field(default_factory=dict)
    given_name: str | None = None

    @property
    def name(self) -> str:
        """The record's own name, or its values."""
        return self.given_name or "-".join(f"{key}={value}" for key, value in self.values.items())

    @property
    def text(self) -> str:
        """The values, for people."""
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or "as it is"

    @property
    def record(self) -> dict[str, Any]:
        """The options as fields of a run's results."""
        named = {} if self.given_name is None else {_NAME: self.given_name}
        return {**named, **self.values}

    def __bool__(self) -> bool:
        return bool(self.values or self.given_name)

    def get(self, key: str) -> Any:
        """The value of `key`, however it is spelled; None where it is not set."""
        return next((v for k, v in self.values.items() if _plain(k) == _plain(key)), None)

    def having(self, **values: Any) -> Overrides:
        """These options updated with `values`."""
        kept = {k: v for k, v in self.values.items() if _plain(k) not in values}
        return Overrides({**kept, **values}, self.given_name)

    def apply(self, command: Sequence[str]) -> list[str]:
        """`command` with these options, in place where it had them, else at its end."""
        words = list(command)
        for key, value in self.values.items():
            place = _find(words, key)
            wanted = list(_words(key, value))
            if place is None:
                words += wanted
                continue
            has_value = (
                "=" not in words[place]
                and place + 1 < len(words)
                and not words[place + 1].startswith("--")
                and not isinstance(value, bool)
            )
            words[place : place + 1 + has_value] = wanted
        return words


def read_overrides(flag: str, file_name: str | None) -> list[Overrides]:
    """The combinations of a file: a list of objects, or names to objects; one without a file."""
    if file_name is None:
        return [Overrides()]
    path = Path(file_name).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{flag} {path} is not JSON: {error}") from None
    if isinstance(content, dict):
        content = [
            {_NAME: name, **(values if isinstance(values, dict) else {"": values})}
            for name, values in content.items()
        ]
    is_list = isinstance(content, list) and content
    if not is_list or not all(isinstance(row, dict) and "" not in row for row in content):
        raise UsageError(f"{flag} {path} is neither a list of objects nor names to objects")
    listed = [
        Overrides({k: v for k, v in row.items() if k != _NAME}, row.get(_NAME)) for row in content
    ]
    names = [one.name for one in listed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{flag} {path} has {', '.join(twice)} twice; results would mix")
    return listed


def _plain(key: str) -> str:
    head, dot, rest = key.partition(".")
    return head.replace("-", "_") + dot + rest


def _words(key: str, value: Any) -> Iterator[str]:
    head, dot, rest = key.partition(".")
    flag = f"--{head.replace('_', '-')}{dot}{rest}"
    if isinstance(value, bool) and not dot:
        yield flag if value else "--no-" + flag.removeprefix("--")
    elif isinstance(value, bool):
        yield f"{flag}={str(value).lower()}"
    elif isinstance(value, list) and not dot:
        yield flag
        yield from map(str, value)
    else:
        yield flag
        yield json.dumps(value) if isinstance(value, dict) else str(value)


def _find(words: Sequence[str], key: str) -> int | None:
    wanted = {_plain(key), "no_" + _plain(key)}
    for place, word in enumerate(words):
        if word.startswith("--") and _plain(word[2:].partition("=")[0]) in wanted:
            return place
    return None
