"""Options without an effect, read from a table, so that each is still parsed and answered.

A line `[GROUP, LEVEL, after NAME] text` begins a block: its level (absent unless it is said), the
option that its rows stand after (or `first`; at the end unless it is said), and the remedy or the
reason for all its rows. A row is `name type rules =default | help`; a longer one goes on in
indented lines. The type is a word of _TYPES, several with commas, or choices with slashes (in a
list `list:a/b`); `?` behind it allows None. Rules are `>=1`, `>0`, `<=1`, aliases, `works:VALUE`,
`alone` or `alone:NAME`, `human`, `bare`, `auto:TEXT` and, for what is replaced, `to:TARGET`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from vllm_lite.config.option import Becomes, Kind, Option, Rules

_TYPES: dict[str, tuple[type, Any]] = {
    "bool": (bool, None),
    "int": (int, None),
    "float": (float, None),
    "str": (str, None),
    "json": (dict, None),
    "list": (list, str),
    "ints": (list, int),
    "items": (list, Any),
}
_BOUNDS = {">=": "ge", "<=": "le", ">": "gt"}
_BARE = (True, "true", "True", "false", "False")
_REASONS = {"idle": "why", "retired": "retired", "replaced": "deprecated"}


def rows(
    text: str, replaced: Mapping[str, tuple[str, Becomes]] | None = None, *, parent: str = ""
) -> tuple[Option, ...]:
    """The options of a table; `parent` is the flag that they are keys of.

    `replaced` says of options with no `to` what to use instead and what their value becomes.
    """
    found: list[Option] = []
    head = [""]
    reason, after = "", None
    for line in text.strip().replace("/\n  ", "/").replace("\n  ", " ").splitlines():
        if line.startswith("["):
            words, _, reason = line[1:].partition("]")
            head = words.split(", ")
            placed = [word.removeprefix("after ") for word in head if word.startswith("after ")]
            after = "" if "first" in head else placed[0] if placed else _last(found, head[0])
            continue
        level = next((word for word in head[1:] if word in (*_REASONS, "partial")), "absent")
        row = _row(line, head[0], level, reason.strip(), (parent, after))
        if level == "replaced":
            use, becomes = (replaced or {}).get(row.name) or _moved(row.rules["deprecated"])
            row.rules.update({"deprecated": use, "becomes": becomes})
        found.append(row)
        after = row.name if after is not None else None
    return tuple(found)


def _last(found: list[Option], group: str) -> str | None:
    """The row that the next of its group follows, where that has a place."""
    own = [row for row in found if row.group == group]
    return own[-1].name if own and own[-1].after is not None else None


def _row(line: str, group: str, level: str, reason: str, place: tuple[str, str | None]) -> Option:
    spec, _, help_text = line.partition(" | ")
    spec, _, default = spec.partition(" =")
    name, word, *rest = spec.split()
    # A retired option that was not given is None.
    kind = _kind(word, is_optional=level in ("retired", "replaced"))
    rules: dict[str, Any] = {"bare": True, "choices": _BARE} if word == "bare" else {}
    for item in rest:
        rules.update(_rule(item, name, kind))
    rules[_REASONS.get(level, "remedy")] = rules.pop("to", reason)
    if level in ("absent", "idle"):
        rules["level"] = level
    value = _value(default, kind) if default else None
    if not default and not kind.optional:
        value = kind.types[0]()
    flat = None if "auto" in rules else value
    made = Option(name, group, help_text, kind, value, flat, cast(Rules, rules))
    return replace(made, parent=place[0], after=place[1])


def _kind(word: str, *, is_optional: bool) -> Kind:
    types, _, listed = word.removesuffix("?").rpartition(":")
    optional = is_optional or word.endswith("?")
    if word == "bare":
        return Kind((bool, str), None, optional, ())
    if "/" in listed:
        is_number = listed.replace("/", "").isdigit()
        choices = tuple(int(item) if is_number else item for item in listed.split("/") if item)
        if types:
            return Kind((list,), str, optional, choices)
        return Kind((type(choices[0]),), None, optional, choices)
    kinds = [_TYPES[item] for item in listed.split(",")]
    return Kind(tuple(kind for kind, _ in kinds), kinds[0][1], optional, ())


def _rule(item: str, name: str, kind: Kind) -> dict[str, Any]:
    for mark, rule in _BOUNDS.items():
        if item.startswith(mark):
            return {rule: json.loads(item.removeprefix(mark))}
    if item.startswith("-"):
        return {"aliases": (item,)}
    key, _, value = item.partition(":")
    if key == "works":
        return {key: tuple(_value(word, kind) for word in value.split("/"))}
    if key == "auto":
        return {key: value.replace("_", " ")}
    return {key: value or (name if key == "alone" else True)}


def _value(text: str, kind: Kind) -> Any:
    return text if kind.types[0] is str else json.loads(text)


def _moved(target: str) -> tuple[str, Becomes]:
    """A value that goes, as it is, to an option or to a key of one."""
    name, dot, key = target.partition(".")
    return f"--{name.replace('_', '-')}{dot}{key}", lambda value: {target: value}
