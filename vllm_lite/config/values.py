"""From the text of an option to its value: human-readable integers, JSON, optional values.

Every reader raises ValueError with a message for the user. Knows no option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# A JSON object, or options by name; its reader knows the types.
Json = dict[str, Any]
JsonView = Mapping[str, Any]
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN = re.compile(r"([+-]?\d+(?:\.\d+)?)([kmgtKMGT])")


def human_int(text: str, words: Mapping[str, int] | None = None) -> int:
    """25.6k is 25600 and 4K is 4096: small letters count in thousands, capitals in 1024s.

    `words` are further spellings, such as auto for -1.
    """
    if words and text in words:
        return words[text]
    match = _HUMAN.fullmatch(text)
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number such as 4096, 4k or 4K") from None
    number, suffix = match.groups()
    if suffix in _BINARY:
        if "." in number:
            raise ValueError(
                f"{text!r}: {suffix} counts in 1024s and takes whole numbers only; "
                f"did you mean {number}{suffix.lower()}?"
            )
        return int(number) * _BINARY[suffix]
    whole, _, fraction = number.partition(".")
    scale = _DECIMAL[suffix]
    value = int(whole + fraction) * scale
    result, remainder = divmod(value, int("1" + "0" * len(fraction)))
    if remainder:
        raise ValueError(f"{text!r} is not a whole number")
    return result


def json_value(text: str) -> Any:
    """A dotted key's value: JSON if it parses, else a human-readable integer, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    return human_int(text) if _HUMAN.fullmatch(text) else text


def json_of(text: str, kind: type) -> Any:
    """JSON text that must hold an object (dict) or a list."""
    name = "object" if kind is dict else "list"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a JSON {name}: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"{text!r} is not a JSON {name}")
    return value


def json_or_text(text: str) -> Any:
    """A JSON object where the text begins like one, else the text."""
    return json_of(text, dict) if text.lstrip().startswith("{") else text
