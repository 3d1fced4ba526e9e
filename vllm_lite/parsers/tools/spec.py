"""A tool as its parsers need it: its name, and the types that its schema gives to arguments.

Knows no request. Invariant: reading a schema never follows a reference twice, nor outside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_MAX_STEPS = 64  # references and alternatives followed in one argument's schema
_TYPES = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
# Aliases from Python and other schema languages.
_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long", "short"), "integer"),
    **dict.fromkeys(("uint", "uint32", "uint64", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict",), "object"),
    **dict.fromkeys(("arr", "list", "tuple", "sequence"), "array"),
    **dict.fromkeys(("none",), "null"),
}
MAX_WHITESPACE = 16  # longest run of white space that a constraint allows
# Keywords whose value maps names to schemas, and those whose value is data.
_SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
# A document's definitions, and the prefixes of references to them.
_DEFINITIONS = {"$defs": "_", "definitions": "_definitions_"}
_DATA = frozenset(("const", "enum", "default", "examples"))


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

    def types_at(self, path: Iterable[str | None]) -> frozenset[str]:
        """The JSON types that the schema allows for a value; empty where it does not say.

        `path` begins with the argument's name and leads into it; None leads to an array's items.
        """
        schema: object = self.parameters
        for key in path:
            if key is None:
                schema = item_schema(schema, self.parameters)
            else:
                schema = property_schema(schema, key, self.parameters)
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
            found |= {type_named(name) for name in named if isinstance(name, str)} - {""}
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


def type_named(word: str) -> str:
    """The JSON type that `word` means, an alias among them; "" where it means none."""
    name = word.partition("[")[0].strip().lower()
    name = _ALIASES.get(name, name)
    return name if name in _TYPES else ""


def property_schema(schema: object, name: str, root: Mapping[str, Any]) -> object:
    """The schema of the property `name` of `schema`, a part of `root`; None if there is none."""
    for part in _alternatives(schema, root):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        if isinstance(part.get("additionalProperties"), Mapping):
            return part["additionalProperties"]
    return None


def item_schema(schema: object, root: Mapping[str, Any]) -> object:
    """The schema of the items of `schema`, a part of `root`; None if there is none."""
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
