"""JSON schemas: their checks, and the choice of a grammar engine that enforces all of one.

Walks what is reachable from the root. Knows JSON Schema 2020-12 and the older forms of its
keywords. Invariant: a keyword that no engine enforces is refused by its name, never ignored.
Source: json-schema.org/draft/2020-12, core and validation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_lite.structured_output.grammar import GrammarError
from vllm_lite.structured_output.patterns import checked

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LEAST = ("minLength", "minItems", "minProperties")
_MOST = ("maxLength", "maxItems", "maxProperties")
# Doubles represent all integers up to here exactly.
_MAX_DOUBLE_INTEGER = 2**53
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1
# A text of so many parts does not end; one of at most so many needs no counting.
_MAX_LEAST, _MAX_MOST = 1 << 20, 2**31 - 1
Schema = dict[str, Any]
MAX_DEPTH = 64
MAX_NODES = 20_000
# xgrammar's tables grow with the square of an object's keys; beyond this it takes seconds.
MAX_XGRAMMAR_NODES = 256
# Enforced by neither engine.
_UNSUPPORTED = frozenset(
    [
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
    ]
)
_OF_TYPE = {
    "object": frozenset(["properties", "required", "additionalProperties"]),
    "array": frozenset(["items", "prefixItems", "minItems", "maxItems"]),
    # xgrammar allows control characters in a string with a length, and dates that do not
    # exist.
    "string": frozenset[str](),
    "integer": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
_OTHERS = frozenset(
    [
        *("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "multipleOf", "pattern"),
        *("patternProperties", "minProperties", "maxProperties", "additionalItems"),
        *("minLength", "maxLength", "format"),
    ]
)
ASSERTIONS = _UNSUPPORTED | _OTHERS | frozenset().union(*_OF_TYPE.values())
# Keywords that determine what a node may be.
_SAYS_KIND = frozenset(["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"])
_IMPLIES = {"properties": "object", "required": "object", "items": "array", "prefixItems": "array"}
# Enforced formats; others are annotations, as in the standard.
FORMATS = frozenset(
    [
        *("date", "time", "date-time", "duration", "email"),
        *("hostname", "ipv4", "ipv6", "uuid", "uri"),
    ]
)
_SHAPES: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (dict, "an object", ("properties", "patternProperties", "$defs", "definitions")),
    (list, "a list", ("anyOf", "oneOf", "allOf", "prefixItems", "enum", "required")),
    (str, "a text", ("$ref", "pattern", "format")),
    ((str, list), "a text or a list", ("type",)),
)
_SCHEMA_MAPS = ("properties", "patternProperties")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "additionalItems")


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


@dataclass
class Gaps:
    """The keywords of a schema that each engine would not enforce exactly."""

    xgrammar: set[str] = field(default_factory=set)
    guidance: set[str] = field(default_factory=set)

    def add(self, other: Gaps) -> None:
        self.xgrammar |= other.xgrammar
        self.guidance |= other.guidance


def read_schema(schema: Any, *, close_objects: bool = False) -> tuple[Schema, Gaps]:
    """`schema` as the engines take it, and what in it they would not enforce exactly.

    Formats that are mere annotations go, a type that other keywords imply is written out;
    with `close_objects`, objects that name their keys take no others. Raises GrammarError.
    """
    if isinstance(schema, bool):
        if not schema:
            raise GrammarError("the JSON schema is false, which no text satisfies")
        schema = {}
    reader = _Reader(schema, close_objects)
    whole = reader.read(schema, ())
    reader.read_references()
    definitions = {
        name: reader.definitions[name] for name in ("$defs", "definitions") if name in schema
    }
    if reader.unsupported:
        named = ", ".join(sorted(reader.unsupported))
        raise GrammarError(f"the JSON schema uses what cannot be enforced: {named}")
    return {**whole, **definitions}, reader.gaps


class _Reader:
    """Rewrites a schema node by node and gathers what it finds."""

    def __init__(self, root: Schema, close_objects: bool) -> None:
        self._root = root
        self._close_objects = close_objects
        self._num_nodes = 0
        self._seen: set[str] = set()
        self._pointers: list[str] = []
        self.unsupported: set[str] = set()
        self.gaps = Gaps()
        self.definitions: dict[str, dict[str, Any]] = {
            name: dict(root[name]) if isinstance(root.get(name), dict) else {}
            for name in ("$defs", "definitions")
        }

    def read(self, node: Any, path: tuple[str, ...]) -> Any:
        """The node rewritten; `path` holds the keywords that lead to it."""
        self._num_nodes += 1
        if len(path) > MAX_DEPTH or self._num_nodes > MAX_NODES:
            raise GrammarError(
                f"the JSON schema is deeper than {MAX_DEPTH} levels or has more than "
                f"{MAX_NODES} parts"
            )
        if not isinstance(node, dict):
            if not isinstance(node, bool):
                raise GrammarError(f"the JSON schema has {node!r:.40} where a schema belongs")
            return node
        _check_shapes(node)
        self.unsupported |= {key for key in node if key in _UNSUPPORTED}
        node = self._completed(node, path)
        if _counts_free_keys(node):
            self.unsupported.add("minProperties above 1 with free keys")
        node = checked_numbers(node, self.gaps.guidance)
        self.gaps.xgrammar |= set(_gaps(node))
        if "$ref" in node and node["$ref"] not in self._seen:
            self._seen.add(node["$ref"])
            self._pointers.append(node["$ref"])
        if self._num_nodes > MAX_XGRAMMAR_NODES or len(node.get("enum", ())) > MAX_XGRAMMAR_NODES:
            self.gaps.xgrammar.add(f"more than {MAX_XGRAMMAR_NODES} parts")
        return {key: self._read_value(key, value, path) for key, value in node.items()}

    def _completed(self, node: Schema, path: tuple[str, ...]) -> Schema:
        node = {key: value for key, value in node.items() if key not in ("$defs", "definitions")}
        node.pop("x-guidance", None)
        if node.get("format") not in FORMATS:
            node.pop("format", None)
        if not _SAYS_KIND & node.keys():
            implied = {_IMPLIES[key] for key in node if key in _IMPLIES}
            if len(implied) == 1:
                node["type"] = implied.pop()
        is_open = "properties" in node and "additionalProperties" not in node
        # A branch of allOf must leave room for the keys of the others.
        if self._close_objects and is_open and "allOf" not in (*path, *node):
            node["additionalProperties"] = False
        return node

    def _read_value(self, key: str, value: Any, path: tuple[str, ...]) -> Any:
        path = (*path, key)
        if key in _SCHEMA_MAPS:
            spell = checked if key == "patternProperties" else str
            return {spell(name): self.read(part, path) for name, part in value.items()}
        if key in _SCHEMA_LISTS or (key == "items" and isinstance(value, list)):
            return [self.read(part, path) for part in value]
        if key == "pattern":
            return checked(value)
        return self.read(value, path) if key in _SCHEMAS else value

    def read_references(self) -> None:
        while self._pointers:
            self._follow(self._pointers.pop())

    def _follow(self, pointer: str) -> None:
        if not pointer.startswith("#"):
            raise GrammarError(
                f"the JSON schema refers to {pointer!r:.80}; only references into itself are "
                "followed"
            )
        self._check_end(pointer)
        keys = [_unescaped(key) for key in pointer.removeprefix("#").split("/")[1:]]
        if len(keys) == 2 and keys[0] in self.definitions:
            group = self.definitions[keys[0]]
            group[keys[1]] = self.read(group[keys[1]], ("$ref",))
        elif keys or pointer != "#":
            self.gaps.xgrammar.add(f"$ref {pointer}")
            # It stays in place, so nothing is duplicated, but what it uses counts.
            self.read(self._target(pointer), ("$ref",))

    def _check_end(self, pointer: Any) -> None:
        """Raise GrammarError for a reference that leads to references alone, and to itself."""
        passed = set()
        while isinstance(pointer, str) and pointer.startswith("#"):
            if pointer in passed:
                raise GrammarError(f"no text satisfies the $ref {pointer!r:.80}: it is its own")
            passed.add(pointer)
            node = self._target(pointer)
            pointer = node.get("$ref") if isinstance(node, dict) else None

    def _target(self, pointer: str) -> Any:
        node: Any = self._root
        for key in [_unescaped(key) for key in pointer.removeprefix("#").split("/")[1:]]:
            if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, Mapping) and key in node:
                node = node[key]
            else:
                raise GrammarError(f"the JSON schema has no {pointer!r:.80}, to which it refers")
        return node


def _check_shapes(node: Schema) -> None:
    """Raise GrammarError for a keyword whose value is of no use."""
    for kinds, words, keywords in _SHAPES:
        for key in keywords:
            if key in node and not isinstance(node[key], kinds):
                raise GrammarError(f"{key} must be {words} in the JSON schema")
    for key in ("required", "type"):
        value = node.get(key, [])
        if isinstance(value, list) and not all(isinstance(one, str) for one in value):
            raise GrammarError(f"{key} must hold only texts in the JSON schema")


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")


def _gaps(node: Schema) -> Iterator[str]:
    """The keywords of one node that xgrammar ignores, approximates or forbids."""
    keys = node.keys() & ASSERTIONS
    for alone in ("$ref", "anyOf"):
        if alone in keys and keys != {alone}:
            yield f"{alone} beside {', '.join(sorted(keys - {alone}))}"
            return
    if keys & {"enum", "const"}:
        if not keys <= {"enum", "type"} and not keys <= {"const", "type"}:
            yield "enum or const beside other keywords"
        elif "type" in keys and not _all_of_type(node):
            yield "enum or const of another type"
        return
    types = node.get("type", [])
    types = types if isinstance(types, list) else [types]
    allowed: set[str] = {"type", "$ref", "anyOf"}
    for name in types:
        allowed |= _OF_TYPE.get(name, frozenset())
    yield from sorted(keys - allowed)
    if "object" in types:
        yield from _object_gaps(node)
    if isinstance(node.get("items"), list):
        yield "items as a list"


def _counts_free_keys(node: Schema) -> bool:
    """Whether keys are counted that may repeat one another."""
    is_open = node.get("additionalProperties", True) is not False or "patternProperties" in node
    least = node.get("minProperties", 0)
    return is_open and isinstance(least, int) and least > 1


def _object_gaps(node: Schema) -> Iterator[str]:
    properties = node.get("properties", {})
    if not set(node.get("required", ())) <= properties.keys():
        yield "required keys without a schema"
    # xgrammar allows an additional key to repeat a named one.
    if properties and node.get("additionalProperties", False) is not False:
        yield "additionalProperties beside properties"


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


def _all_of_type(node: Schema) -> bool:
    types = node["type"] if isinstance(node["type"], list) else [node["type"]]
    values = node["enum"] if isinstance(node.get("enum"), list) else [node.get("const")]
    allowed = tuple(kind for name in types for kind in _PYTHON_TYPES.get(name, ()))
    return all(
        isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
        for value in values
    )
