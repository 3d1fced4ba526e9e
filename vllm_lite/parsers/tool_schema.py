"""A tool's JSON schema as a part of a larger one.

Knows no format. Invariant: a schema that is moved means what it meant where it stood alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_lite.parsers.tool_spec import ToolSpec

MAX_WHITESPACE = 16  # characters of white space in a row, where a constraint allows any
# Keywords whose value maps names to schemas, and those whose value is data.
_SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_DATA = frozenset(("const", "enum", "default", "examples"))


def argument_schema(tool: ToolSpec) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object."""
    schema = dict(tool.parameters)
    if "$ref" not in schema:
        schema.setdefault("type", "object")
    return schema


def moved(schema: Any, root: str) -> Any:
    """`schema`, a whole document, as a part that lies at `root` of another: references follow."""
    if isinstance(schema, list):
        return [moved(item, root) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = root + value[1:]
        elif key in _SCHEMA_MAPS and isinstance(value, Mapping):
            found[key] = {name: moved(part, root) for name, part in value.items()}
        else:
            found[key] = value if key in _DATA else moved(value, root)
    return found


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
