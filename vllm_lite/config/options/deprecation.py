"""Replaces deprecated options and warns of options without effect.

Knows options by their rules alone. Each gets one warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_lite.config.options.option import Option
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)


def without_deprecated(values: JsonView, table: Mapping[str, Option]) -> Json:
    """`values` by name, with deprecated options replaced.

    Options that the user set stay. Raises UsageError for an invalid deprecated value.
    """
    kept = dict(values)
    for name, value in values.items():
        entry = table[name]
        if entry.level != "deprecated":
            continue
        del kept[name]
        _replace(kept, entry, value)
    for name in [name for name in kept if table[name].keys]:
        for own, item in _parts(table[name], kept[name]):
            if own.level == "deprecated":
                kept[name] = {key: old for key, old in kept[name].items() if key != own.name}
                _replace(kept, own, item)
    return kept


def _replace(kept: Json, entry: Option, value: Any) -> None:
    """Set what replaces the deprecated option `entry` with its value, which is not in `kept`."""
    if value is None:
        return
    entry.check(value)
    logger.warning("%s", _notice(entry))
    translate = entry.rules.get("becomes")
    for target, new in (translate(value) if translate else {}).items():
        _set(kept, target, new)


def warn_of_idle(values: JsonView, table: Mapping[str, Option], *, gpu_only: bool = False) -> None:
    """Warn of each option in `values` that changes nothing: in this build, or on a CPU."""
    place = "here" if gpu_only else "in this build"
    for name, value in values.items():
        for own, item in _parts(table[name], value):
            reason = own.rules.get("on_cpu") if gpu_only else own.rules.get("why")
            if reason is not None and item not in (None, own.default):
                logger.warning("%s changes nothing %s: %s", own.flag, place, reason)


def _notice(entry: Option) -> str:
    retired = entry.rules.get("retired")
    if retired is not None:
        return f"{entry.flag} is deprecated and changes nothing: {retired}"
    return f"{entry.flag} is deprecated; use {entry.rules['deprecated']}"


def _set(values: Json, target: str, new: Any) -> None:
    name, dot, key = target.partition(".")
    if not dot:
        values.setdefault(name, new)
        return
    whole = values.get(name) or {}
    if not isinstance(whole, dict):
        raise UsageError(f"--{name.replace('_', '-')} must be a JSON object, not {whole!r}")
    # A new object: the one given is the caller's.
    values[name] = {key: new, **whole}


def _parts(entry: Option, value: Any) -> list[tuple[Option, Any]]:
    if not entry.keys or not isinstance(value, dict):
        return [(entry, value)]
    return [(own, value[own.name]) for own in entry.keys if own.name in value]
