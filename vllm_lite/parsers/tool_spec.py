"""A tool as its parsers need it: its name, and the types that its schema gives to arguments.

Knows no request. Invariant: reading a schema never follows a reference twice, nor outside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_MAX_STEPS = 64  # of following references and alternatives within one argument's schema
_TYPES = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The choice of one tool that must be called."""

    name: str


# "none", "auto", "required" or one tool; None is "auto".
ToolChoice = Literal["none", "auto", "required"] | NamedTool | None


def is_forced(choice: ToolChoice) -> bool:
    """Whether the answer must be calls."""
    return choice == "required" or isinstance(choice, NamedTool)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One function of a request. `parameters` is its JSON schema, {} where it has none."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool | None = None

    def argument_types(self, argument: str) -> frozenset[str]:
        """The JSON types that the schema allows for `argument`; empty where it does not say."""
        schema = property_schema(self.parameters, argument, self.parameters)
        return schema_types(schema, self.parameters)


def schema_types(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that `schema`, a part of `root`, allows; empty where it does not say."""
    found: set[str] = set()
    pending = [schema]
    for _ in range(_MAX_STEPS):
        if not pending:
            break
        part = pending.pop()
        if not isinstance(part, Mapping):
            return frozenset()
        types = part.get("type")
        alternatives = [part[key] for key in ("anyOf", "oneOf") if isinstance(part.get(key), list)]
        if isinstance(types, str | list):
            named = [types] if isinstance(types, str) else types
            found |= {name for name in named if isinstance(name, str)} & _TYPES
        elif isinstance(part.get("$ref"), str):
            pending.append(resolve(part["$ref"], root))
        elif alternatives:
            pending += alternatives[0]
        elif isinstance(part.get("allOf"), list) and part["allOf"]:
            pending.append(part["allOf"][0])
        elif "const" in part:
            found.add(json_type(part["const"]))
        elif isinstance(part.get("enum"), list):
            found |= {json_type(value) for value in part["enum"]}
        else:
            return frozenset()
    return frozenset() if pending else frozenset(found)


def property_schema(schema: object, name: str, root: Mapping[str, Any]) -> object:
    """What `schema`, a part of `root`, says of its property `name`; None where nothing."""
    for part in _alternatives(schema, root):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
    return None


def item_schema(schema: object, root: Mapping[str, Any]) -> object:
    """What `schema`, a part of `root`, says of its items; None where nothing."""
    return next((part["items"] for part in _alternatives(schema, root) if "items" in part), None)


def _alternatives(schema: object, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """`schema` and what it refers to or is made of, near ones first."""
    pending = [schema]
    for _ in range(_MAX_STEPS):
        if not pending:
            return
        part = pending.pop(0)
        if not isinstance(part, Mapping):
            continue
        yield part
        if isinstance(part.get("$ref"), str):
            pending.append(resolve(part["$ref"], root))
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(part.get(key), list):
                pending += part[key]


def resolve(reference: str, root: Mapping[str, Any]) -> object:
    """The part of `root` that a local reference (`#/$defs/City`) names, or None."""
    if not reference.startswith("#"):
        return None
    part: object = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        part = part.get(step) if isinstance(part, Mapping) else None
    return part


def json_type(value: object) -> str:
    """The JSON type of a value that JSON has been read into."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "array" if isinstance(value, list) else "object"
