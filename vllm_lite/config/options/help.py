"""The help texts of a command, made from its options: a summary, one group, or a search."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_lite.config.options.option import Option, group_of, sections
from vllm_lite.errors import UsageError

_WIDTH = 96
# Topics of help that every command has, beside its groups.
_ALWAYS = ("all", "page", "listgroup", "absent")
# Groups in display order, after a command's own; the most used come first.
_ORDER = (
    "Frontend",
    "ModelConfig",
    "CacheConfig",
    "SchedulerConfig",
    "LoadConfig",
    "StructuredOutputsConfig",
    "LoggingConfig",
    "ObservabilityConfig",
    "AttentionConfig",
    "ParallelConfig",
    "KernelConfig",
    "MambaConfig",
    "MultiModalConfig",
    "OffloadConfig",
    "LoRAConfig",
)
_METAVARS = {int: "N", float: "X", str: "TEXT", dict: "JSON"}
# Groups without a class of their own: those to show first, and those to show last.
_FIRST = {
    "options": "Configuration file, processes and logging.",
    "Frontend": "Addresses, access and replies of the server.",
}
_LAST = {
    "KernelConfig": "Kernels of matrix products, experts and small operations.",
    "MambaConfig": "State-space layers.",
    "MultiModalConfig": "Media in prompts.",
    "OffloadConfig": "Weights kept in host memory.",
    "LoRAConfig": "Low-rank adapters.",
    "DeviceConfig": "The model's device.",
    "SpeculativeConfig": "Drafted tokens, as older releases wrote them.",
    "PromptAdapterConfig": "Soft prompts of older releases.",
    "TokenizerPoolConfig": "Tokenizer processes of older releases.",
}


def groups_of(entries: Sequence[Option], classes: Iterable[type]) -> dict[str, str]:
    """Each group of `entries` with its description, in display order."""
    parts = [part for cls in classes for part in (*sections(cls).values(), cls)]
    found = {group_of(part): (part.__doc__ or "").partition("\n")[0] for part in parts}
    used = {entry.group for entry in entries}
    about = _FIRST | found | _LAST
    own = [name for name in about if name not in _ORDER and not name.endswith("Config")]
    early = [name for name in _ORDER if name in about]
    return {name: about[name] for name in dict.fromkeys([*own, *early, *about]) if name in used}


def is_at_work(entry: Option) -> bool:
    """Whether an option has an effect in this build and is not deprecated."""
    return entry.level in ("full", "partial")


def help_text(topic: str, entries: Sequence[Option], about: Mapping[str, str]) -> str:
    """Help on `topic`: "" is the summary, else a group, a word in an option's name, all that
    works, or what is absent.

    `about` says what each group is for, in the order to show them. Raises UsageError for a topic
    that is nothing of these.
    """
    groups: dict[str, Sequence[Option]] = {
        name: [entry for entry in entries if entry.group == name] for name in about
    }
    at_work: dict[str, Sequence[Option]] = {
        name: list(filter(is_at_work, found)) for name, found in groups.items()
    }
    key = topic.lower()
    if not key or key == "listgroup":
        shown = {name: text for name, text in about.items() if at_work[name]}
        return _group_list(shown) if key else _summary(shown)
    if key in ("all", "page"):
        chosen = at_work
    elif key == "absent":
        chosen = {
            name: [entry for entry in found if not is_at_work(entry)]
            for name, found in groups.items()
        }
    else:
        chosen = _found(key, at_work) or _found(key, groups)
    texts = [_group(name, about[name], found) for name, found in chosen.items() if found]
    if not texts and key == "absent":
        return "Every option of this command works.\n"
    if not texts:
        raise UsageError(
            f"--help={topic}: no such topic (choose from {', '.join([*_ALWAYS, *about])}, or a "
            "word in an option's name)"
        )
    return "\n".join(texts)


def _found(key: str, groups: Mapping[str, Sequence[Option]]) -> dict[str, Sequence[Option]]:
    """The group of that name, else the options whose name holds the word."""
    chosen = {name: found for name, found in groups.items() if name.lower() == key and found}
    if chosen:
        return chosen
    word = key.lstrip("-").replace("_", "-")
    about = {
        name: [entry for entry in found if _is_about(entry, word)] for name, found in groups.items()
    }
    return {name: found for name, found in about.items() if found}


def _is_about(entry: Option, word: str) -> bool:
    if word in entry.flag[2:]:
        return True
    return any(word in key.name.replace("_", "-") for key in entry.keys)


def _group_list(about: Mapping[str, str]) -> str:
    width = max(map(len, about), default=0) + 2
    return "Option groups:\n" + "".join(
        f"  {name:<{width}}{text}\n" for name, text in about.items()
    )


def _summary(about: Mapping[str, str]) -> str:
    return (
        _group_list(about)
        + """
Show options with
  --help=GROUP      those of a group, such as --help=Frontend
  --help=WORD       those whose name holds a word, such as --help=max
  --help=all        all options that work
  --help=page       the same, a screen at a time
  --help=absent     options of vLLM without effect here, and what to do instead
  --help=listgroup  the groups
"""
    )


def _group(name: str, about: str, entries: Sequence[Option]) -> str:
    return f"{name}: {about}\n\n" + "".join(_option(entry) for entry in entries)


def _option(entry: Option) -> str:
    names = [entry.flag, *entry.rules.get("aliases", ())]
    if entry.kind.types == (bool,):
        names.append(f"--no-{entry.flag[2:]}")
    head = ", ".join(names)
    metavar = _metavar(entry)
    body = f"{entry.help} (default: {default_of(entry)}){remark_on(entry)}".lstrip()
    indent = " " * 6
    text = textwrap.fill(
        body, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return f"  {head}{' ' + metavar if metavar else ''}\n{text}\n"


def remark_on(entry: Option) -> str:
    """A remark: the option's keys, or why it has no or only part of its effect."""
    rules = entry.rules
    if entry.keys:
        return f" Keys: {', '.join(key.name for key in entry.keys)}."
    if entry.level == "absent":
        return f" Not available in this build: {rules['remedy']}."
    if entry.level == "idle":
        return f" Changes nothing in this build: {rules['why']}."
    if "on_cpu" in rules:
        return " GPU only."
    if "retired" in rules:
        return f" Deprecated, changes nothing: {rules['retired']}."
    if "works" in rules and not entry.choices:
        works = " and ".join(str(value) for value in rules["works"] if value is not None)
        return f" In this build only {works} works: {rules['remedy']}."
    return f" Deprecated: use {rules['deprecated']}." if "deprecated" in rules else ""


def _metavar(entry: Option) -> str:
    if entry.kind.types == (bool,):
        return ""
    if entry.choices and not entry.rules.get("bare"):
        works = entry.rules.get("works")
        shown: Sequence[Any] = [c for c in entry.choices if works is None or c in works]
        return "{" + ",".join(str(choice) for choice in shown) + "}"
    if list in entry.kind.types:
        item = _METAVARS.get(entry.kind.item or str, "TEXT")
        return "JSON" if entry.rules.get("json") else f"{item} [{item} ...]"
    if entry.rules.get("bare"):
        return "[TEXT]"
    return _METAVARS[entry.kind.types[0]]


def default_of(entry: Option) -> str:
    """The default, in words where it is derived."""
    if "auto" in entry.rules:
        return entry.rules["auto"]
    value = entry.default
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value in (None, "", [], {}) else str(value)
