"""Numbers in a JSON schema: those that an engine would round, or cannot count to, are refused.

Engines read bounds as 64-bit integers or as doubles. Invariant: what is kept means to the engine
what it means to the reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from vllm_lite.structured_output.grammar import GrammarError

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LEAST = ("minLength", "minItems", "minProperties")
_MOST = ("maxLength", "maxItems", "maxProperties")
# Doubles represent all integers up to here exactly.
_MAX_DOUBLE_INTEGER = 2**53
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1
# A text of so many parts does not end; one of at most so many needs no counting.
_MAX_LEAST, _MAX_MOST = 1 << 20, 2**31 - 1


def checked_numbers(node: dict[str, Any], wide: set[str]) -> dict[str, Any]:
    """One node of a schema without limits that nothing reaches.

    Adds to `wide` what llguidance would round. Raises GrammarError.
    """
    for key in _BOUNDS:
        if key in node and _is_wide(key, node[key], node.get("type", [])):
            wide.add(f"{key} {node[key]}")
    multiple = node.get("multipleOf", 1)
    if not _is_number(multiple) or multiple <= 0 or not _is_double(multiple):
        raise GrammarError(
            f"multipleOf must be a number above 0 in the JSON schema: {_shown(multiple)}"
        )
    for key in (*_LEAST, *_MOST):
        _check_size(key, node)
    for value in _numbers([node.get("const"), node.get("enum")]):
        if not isinstance(value, int) or abs(value) <= _MAX_DOUBLE_INTEGER:
            continue
        wide.add(_shown(value))
        if not _is_integer(value) and not _is_double(value):
            raise GrammarError(f"the JSON schema has the value {_shown(value)}: too many digits")
    return {key: node[key] for key in node if key not in _MOST or node[key] <= _MAX_MOST}


def _is_wide(key: str, bound: Any, types: Any) -> bool:
    if not _is_number(bound):
        raise GrammarError(f"{key} must be a number in the JSON schema: {_shown(bound)}")
    if abs(bound) <= _MAX_DOUBLE_INTEGER:
        return False
    is_integer = types in ("integer", ["integer"])
    if not (_is_integer(bound) if is_integer else _is_double(bound)):
        raise GrammarError(
            f"{key} {_shown(bound)} cannot be enforced exactly: "
            + ("integers have 64 bits" if is_integer else "numbers are doubles")
        )
    return True


def _check_size(key: str, node: dict[str, Any]) -> None:
    size = node.get(key, 0)
    if not _is_number(size) or size < 0 or size != size // 1:
        raise GrammarError(f"{key} must be a whole number in the JSON schema: {_shown(size)}")
    if key in _LEAST and size > _MAX_LEAST:
        raise GrammarError(f"{key} {_shown(size)} is more than a text here can have")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: float) -> bool:
    return isinstance(value, int) and _MIN_INTEGER <= value <= _MAX_INTEGER


def _is_double(value: float) -> bool:
    """Whether a double holds it as it is written."""
    try:
        return math.isfinite(value) and float(value) == value
    except OverflowError:
        return False


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif _is_number(value):
        yield value


def _shown(value: Any) -> str:
    return f"{value!r:.40}"
