"""A tool's JSON schema as a part of a larger one.

Knows no format. Invariant: a schema that is moved means what it meant where it stood alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_lite.parsers.tools.spec import ToolSpec

MAX_WHITESPACE = 16  # characters of white space in a row, where a constraint allows any
# Keywords whose value maps names to schemas, and those whose value is data.
_SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
# Where a document keeps its definitions, and what leads to their names elsewhere.
_DEFINITIONS = {"$defs": "_", "definitions": "_definitions_"}
_DATA = frozenset(("const", "enum", "default", "examples"))


def argument_schema(tool: ToolSpec) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object."""
    schema = dict(tool.parameters)
    if "$ref" not in schema:
        schema.setdefault("type", "object")
    return schema


def as_definitions(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`schema`, a whole document, as entries of another's `$defs`: `name` and what it refers to.

    Its own definitions become neighbours (`name_City`), since not every engine follows a
    reference into an entry.
    """
    found = {}
    for keyword in _DEFINITIONS:
        parts = schema.get(keyword)
        if isinstance(parts, Mapping):
            for key, part in parts.items():
                found[f"{name}{_DEFINITIONS[keyword]}{key}"] = _moved(part, name)
    rest = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    return {name: _moved(rest, name), **found}


def _moved(schema: Any, name: str) -> Any:
    """A part of the document that becomes `name`, its references led where their targets go."""
    if isinstance(schema, list):
        return [_moved(item, name) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = _led(value, name)
        elif key in _SCHEMA_MAPS and isinstance(value, Mapping):
            found[key] = {inner: _moved(part, name) for inner, part in value.items()}
        else:
            found[key] = value if key in _DATA else _moved(value, name)
    return found


def _led(reference: str, name: str) -> str:
    for keyword, infix in _DEFINITIONS.items():
        start = f"#/{keyword}/"
        if reference.startswith(start):
            return f"#/$defs/{name}{infix}{reference.removeprefix(start)}"
    return f"#/$defs/{name}{reference[1:]}"


def has_keyword(schema: Any, keywords: frozenset[str]) -> bool:
    """Whether `schema` or a schema within it uses one of `keywords`."""
    if isinstance(schema, list):
        return any(has_keyword(item, keywords) for item in schema)
    if not isinstance(schema, Mapping):
        return False
    for key, value in schema.items():
        if key in keywords:
            return True
        if key in _SCHEMA_MAPS and isinstance(value, Mapping):
            if any(has_keyword(part, keywords) for part in value.values()):
                return True
        elif key not in _DATA and has_keyword(value, keywords):
            return True
    return False
