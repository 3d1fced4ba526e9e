"""Equal constraints have equal names; what is wrong without any engine is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.errors import RequestError
from vllm_lite.structured_output.canonical import canonical, name_of
from vllm_lite.structured_outputs_params import StructuredOutputsParams


def name(config: StructuredOutputsConfig | None = None, **constraint: Any) -> bytes:
    params = StructuredOutputsParams(**constraint)
    return name_of(canonical(params, config or StructuredOutputsConfig()))


def test_spelling_does_not_matter() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    text = '{ "type": "object",\n "properties": {"a": {}} }'
    assert name(json=schema) == name(json=text)
    assert name(json=schema) == name(json=schema, enable_in_reasoning=True)
    assert name(regex="a") == name(regex="a", disable_any_whitespace=True)


def test_what_changes_the_grammar_changes_the_name() -> None:
    names = [
        name(json={"a": 1, "b": 2}),
        name(json={"b": 2, "a": 1}),  # keys are generated in their order
        name(json={"a": 1, "b": 2}, disable_any_whitespace=True),
        name(json={"a": 1, "b": 2}, disable_additional_properties=True),
        name(json={"a": 1, "b": 2}, whitespace_pattern=" "),
        name(json_object=True),
        name(regex="a"),
        name(grammar="a"),
        name(choice=["a"]),
        name(choice=["a", "b"]),
    ]
    assert len(set(names)) == len(names)


def test_the_engines_options_are_in_it() -> None:
    config = StructuredOutputsConfig(disable_any_whitespace=True, enable_in_reasoning=True)
    assert name(config, json={}) == name(json={}, disable_any_whitespace=True)
    # A request's own pattern says more than the engine's default.
    assert name(config, json={}, whitespace_pattern=" ") == name(json={}, whitespace_pattern=" ")
    found = canonical(StructuredOutputsParams(regex="a"), config)
    assert found.enable_in_reasoning


COMPACT = {"disable_any_whitespace": True}
NESTED: dict[str, Any] = {}
NESTED["items"] = NESTED


@pytest.mark.parametrize(
    ("field", "constraint"),
    [
        ("json", {"json": "{"}),
        ("json", {"json": "[1]"}),
        ("json", {"json": "3"}),
        ("json", {"json": '{"minimum": NaN}'}),
        ("json", {"json": {"default": object()}}),
        ("json", {"json": {"minimum": float("inf")}}),
        ("json", {"json": NESTED}),
        ("json", {"json": "[" * 100_000}),
        ("json", {"json": {"enum": ["x" * 300_000]}}),
        ("structural_tag", {"structural_tag": "<tag>"}),
        ("structural_tag", {"structural_tag": "[]"}),
        ("whitespace_pattern", {"regex": "a", "whitespace_pattern": " "}),
        (
            "whitespace_pattern",
            {"json": {}, "whitespace_pattern": " ", **COMPACT},
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_shows_at_once_is_refused_at_once(field: str, constraint: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        name(**constraint)
    assert error.value.param == f"structured_outputs.{field}"
    assert len(error.value.message) < 300
