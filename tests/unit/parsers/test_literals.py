"""Values in each dialect become JSON, whole or cut, and nothing is ever evaluated."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_lite.parsers.literals import GEMMA, JSON, PYTHON, Dialect, convert, is_json
from vllm_lite.parsers.tools.spec import ToolSpec
from vllm_lite.parsers.tools.values import typed

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab \"'\\é\n"), inner),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_json_is_unchanged(value: Any, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    assert is_json(text)
    found = convert(text, JSON)
    assert found is not None and json.loads(found) == value
    if indent is None:
        assert found == text


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_python_literals_mean_what_python_says(value: Any) -> None:
    text = repr(value)
    found = convert(text, PYTHON)
    assert found is not None and json.loads(found) == ast.literal_eval(text)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.data())
def test_a_value_that_is_cut_is_no_value(value: Any, data: st.DataObject) -> None:
    text = json.dumps([value])
    cut = data.draw(st.integers(1, len(text) - 1))
    assert is_json(text[:cut]) is None


@pytest.mark.parametrize(
    ("text", "dialect", "found"),
    [
        ("(1, 2,)", PYTHON, "[1, 2]"),
        ("{'a': True, 'b': None}", PYTHON, '{"a": true, "b": null}'),
        ('"""a"b"""', PYTHON, '"a\\"b"'),
        (r"'\x41\u00e9\U0001F642\q'", PYTHON, '"A\\u00e9🙂\\\\q"'),
        ("{true: 1}", PYTHON, None),
        ("__import__('os')", PYTHON, None),
        ("[f(1)]", PYTHON, None),
        ("[07, +1, .5, 5., -00.50e3, 1_000]", PYTHON, "[7, 1, 0.5, 5.0, -0.50e3, 1000]"),
        ("1__0", PYTHON, None),
        ("+", PYTHON, None),
        (".", PYTHON, None),
        ("NaN", JSON, None),
        ("01", JSON, None),
        ("{'a': 1}", JSON, None),
        ('"a\nb"', JSON, '"a\\nb"'),
        ('{"a": 1} x', JSON, None),
        ("[1,,2]", JSON, None),
        ("[1}", JSON, None),
        ('{a:<|"|>x "y"<|"|>,b:[1,true],c:New York}', GEMMA, None),
    ],
)
def test_odd_values(text: str, dialect: Dialect, found: str | None) -> None:
    if dialect is GEMMA:
        found = '{"a": "x \\"y\\"", "b": [1, true], "c": "New York"}'
    assert convert(text, dialect) == found


def test_depth_is_no_matter() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert convert(deep, JSON) == deep
    assert is_json(deep[:-1]) is None
    assert convert("9" * 100_000, JSON) == "9" * 100_000


@pytest.mark.parametrize(
    ("text", "types", "found"),
    [
        ("12", {"integer"}, "12"),
        (" 1e5\n", {"number"}, "1e5"),
        ("12", {"string"}, '"12"'),
        ("12", {"string", "integer"}, "12"),
        ("abc", {"integer"}, '"abc"'),
        ("True", {"boolean"}, "true"),
        ("0", {"boolean"}, "false"),
        ("null", {"integer"}, "null"),
        ("null", {"string"}, '"null"'),
        ("null", {"string", "null"}, "null"),
        ("{'a': 1}", {"object"}, '{"a": 1}'),
        ('{"a\\/b": 1}', {"object"}, '{"a\\/b": 1}'),
        ("[1, 2]", {"object"}, "[1, 2]"),
        ("[1, 2]", {"object", "string"}, '"[1, 2]"'),
        ("true", {"integer"}, "true"),
        ("018956", {"integer"}, "18956"),
        ("018956", {"integer", "string"}, '"018956"'),
        ("+.5", {"number"}, "0.5"),
        ("[1, 2", {"array"}, '"[1, 2"'),
        ("1e999999", {"number"}, "1e999999"),
    ],
)
def test_text_gets_the_type_that_the_schema_allows(text: str, types: set[str], found: str) -> None:
    assert typed(text, types) == found


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/S"}]}, {"integer", "string"}),
        ({"enum": [1, "a", None, True, 0.5, [], {}]}, None),
        ({"const": "a"}, {"string"}),
        ({"type": ["float", "bool", "int64", "Dict", "list[str]", "str", "None"]}, None),
        ({"type": "no such type"}, set()),
        ({"allOf": [{"$ref": "#/$defs/S"}]}, {"string"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "http://elsewhere"}, set()),
        ({"anyOf": [{"type": "integer"}, {}]}, set()),
        ({}, set()),
        (True, set()),
    ],
)
def test_a_schema_says_which_types_an_argument_has(schema: object, types: set[str] | None) -> None:
    defs = {"S": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    tool = ToolSpec("t", {"properties": {"a": schema}, "$defs": defs})
    if types is None:
        types = {"string", "integer", "number", "boolean", "object", "array", "null"}
    assert tool.types_at(["a"]) == types
