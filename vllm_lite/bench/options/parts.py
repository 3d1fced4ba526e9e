"""Texts of several parts taken apart."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.errors import UsageError


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
