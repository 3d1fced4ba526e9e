"""Exactly one constraint, within bounds; decoding an instance gives the same instance."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import SamplingParams, StructuredOutputsParams

GOOD: list[dict[str, Any]] = [
    {"json": {"type": "object"}},
    {"json": '{"type": "object"}'},
    {"regex": "[a-z]+"},
    {"choice": ["yes", "no"]},
    {"grammar": 'root ::= "a"'},
    {"json_object": True},
    {"structural_tag": "{}"},
    {"json": {}, "json_object": False},
    {"regex": "a", "whitespace_pattern": " ?", "disable_any_whitespace": True},
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("structured_outputs", {}),
    ("structured_outputs", {"json_object": False}),
    ("structured_outputs", {"json": {}, "regex": "a"}),
    ("structured_outputs.json", {"json": 3}),
    ("structured_outputs.json", {"json": ""}),
    ("structured_outputs.regex", {"regex": ""}),
    ("structured_outputs.regex", {"regex": "a" * (1 << 19)}),
    ("structured_outputs.grammar", {"grammar": ["x"]}),
    ("structured_outputs.choice", {"choice": []}),
    ("structured_outputs.choice", {"choice": ["a", 1]}),
    ("structured_outputs.choice", {"choice": [""]}),
    ("structured_outputs.choice", {"choice": "yes"}),
    ("structured_outputs.choice", {"choice": ["a"] * 5000}),
    ("structured_outputs.choice", {"choice": ["a" * 1000] * 1000}),
    ("structured_outputs.json_object", {"json_object": "yes"}),
    ("structured_outputs.whitespace_pattern", {"json": {}, "whitespace_pattern": ""}),
    ("structured_outputs.disable_any_whitespace", {"json": {}, "disable_any_whitespace": 1}),
]


@pytest.mark.parametrize("fields", GOOD)
def test_a_constraint_survives_the_wire(fields: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**fields))
    packed = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(packed, type=SamplingParams) == params
    assert params.clone().structured_outputs == params.structured_outputs


@pytest.mark.parametrize(("param", "fields"), BAD)
def test_a_bad_constraint_names_its_field(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        StructuredOutputsParams(**fields)
    assert error.value.param == param
    assert len(error.value.message) < 200


def test_the_constraint_has_a_name() -> None:
    assert StructuredOutputsParams(json={}, json_object=False).constraint == "json"
    assert StructuredOutputsParams(json_object=True).constraint == "json_object"


def test_a_dict_is_not_yet_a_constraint() -> None:
    with pytest.raises(RequestError, match="must be a StructuredOutputsParams"):
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-2, 1.5, True, "3"])
def test_a_bad_thinking_budget_is_refused(value: Any) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(thinking_token_budget=value)
    assert error.value.param == "thinking_token_budget"


def test_no_thinking_budget_has_two_spellings() -> None:
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
    assert SamplingParams(thinking_token_budget=0).thinking_token_budget == 0
