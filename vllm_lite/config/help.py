"""The help texts of a command, made from its options: a summary, one group, or a search."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from vllm_lite.config.option import Option

_WIDTH = 96
_METAVARS = {int: "N", float: "X", str: "TEXT", dict: "JSON"}


def help_text(topic: str, entries: Sequence[Option], about: dict[str, str]) -> str:
    """Help on `topic`: "" is the summary, else a group, a word in an option's name, or all.

    `about` says what each group is for, in the order to show them.
    """
    groups = {name: [entry for entry in entries if entry.group == name] for name in about}
    if not topic:
        return _summary(groups, about)
    key = topic.lower()
    if key == "all":
        chosen = groups
    else:
        chosen = {name: found for name, found in groups.items() if name.lower() == key}
    if not chosen:
        word = key.lstrip("-").replace("_", "-")
        chosen = {
            name: [entry for entry in found if word in entry.flag[2:]]
            for name, found in groups.items()
        }
    texts = [_group(name, about[name], found) for name, found in chosen.items() if found]
    if not texts:
        return f"No group or arguments matching {topic!r}; --help lists the groups.\n"
    return "\n".join(texts)


def _summary(groups: dict[str, list[Option]], about: dict[str, str]) -> str:
    width = max(len(name) for name in groups) + 2
    lines = ["Option groups:"]
    lines += [f"  {name:<{width}}{about[name]}" for name, found in groups.items() if found]
    lines += [
        "",
        "Show options with",
        "  --help=GROUP   those of a group, such as --help=Frontend",
        "  --help=WORD    those whose name holds a word, such as --help=max",
        "  --help=all     every one",
    ]
    return "\n".join(lines) + "\n"


def _group(name: str, about: str, entries: Sequence[Option]) -> str:
    return f"{name}: {about}\n\n" + "".join(_option(entry) for entry in entries)


def _option(entry: Option) -> str:
    names = [entry.flag, *entry.rules.get("aliases", ())]
    if entry.kind.types == (bool,):
        names.append(f"--no-{entry.flag[2:]}")
    head = ", ".join(names)
    metavar = _metavar(entry)
    body = f"{entry.help} (default: {_default(entry)})"
    if "deprecated" in entry.rules:
        body += f" Deprecated: use {entry.rules['deprecated']}."
    indent = " " * 6
    text = textwrap.fill(
        body, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return f"  {head}{' ' + metavar if metavar else ''}\n{text}\n"


def _metavar(entry: Option) -> str:
    if entry.kind.types == (bool,):
        return ""
    if entry.choices:
        works = entry.rules.get("works")
        shown: Sequence[Any] = [c for c in entry.choices if works is None or c in works]
        return "{" + ",".join(str(choice) for choice in shown) + "}"
    if list in entry.kind.types:
        return "JSON" if entry.rules.get("json") else "TEXT [TEXT ...]"
    if entry.rules.get("bare"):
        return "[TEXT]"
    return _METAVARS[entry.kind.types[0]]


def _default(entry: Option) -> str:
    if "auto" in entry.rules:
        return entry.rules["auto"]
    value = entry.default
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value in (None, "", [], {}) else str(value)
