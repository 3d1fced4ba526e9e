"""Options from flat values, and texts of several parts taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from vllm_lite.config.option import options, sections
from vllm_lite.errors import UsageError

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a @config class and its sections from one flat mapping; UsageError."""
    declared: type = cls
    fields: dict[str, Any] = {
        name: build(part, values) for name, part in sections(declared).items()
    }
    own = [entry.name for entry in options(declared) if entry.name in values]
    return cls(**fields, **{name: values[name] for name in own})


def pairs(flag: str, words: Sequence[str]) -> dict[str, str]:
    """The KEY=VALUE `words` of `flag`; raises UsageError."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"{flag} {word!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def numbers(flag: str, text: str, example: str) -> tuple[float, ...]:
    """The numbers of a comma-separated `text`; raises UsageError."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} {text!r} is not a list such as {example}") from None
