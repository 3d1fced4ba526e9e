"""A JSON schema is enforced to the letter, or refused by the word that cannot be."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from tests.unit.structured_output.walks import compiled, schema_cases, walk
from vllm_lite.structured_output.compiler import GrammarEngines
from vllm_lite.structured_output.grammar import Refusal
from vllm_lite.structured_output.schema import read_schema

CASES = schema_cases()
ENFORCED = [case for case in CASES if "refused" not in case]
REFUSED = [case for case in CASES if "refused" in case]
# Formats whose checks know no more than the standard.
CHECKED = jsonschema.FormatChecker(formats=["email", "ipv4", "ipv6", "uuid"])
NUM_WALKS = 8


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def test_there_are_a_hundred_and_each_once() -> None:
    assert len(ENFORCED) >= 100
    assert len({name(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", ENFORCED, ids=name)
def test_every_text_that_ends_validates(case: dict[str, Any], engines: GrammarEngines) -> None:
    grammar = compiled(engines, json=json.dumps(case["schema"]))
    assert not isinstance(grammar, Refusal), grammar.message
    rng = random.Random(name(case))
    texts = [walk(grammar, rng) for _ in range(NUM_WALKS)]
    ended = [text.decode(errors="replace") for text in texts if text is not None]
    assert ended
    for text in ended:
        jsonschema.validate(json.loads(text), case["schema"], format_checker=CHECKED)


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_a_refusal_says_what_cannot_be(case: dict[str, Any], engines: GrammarEngines) -> None:
    refusal = compiled(engines, json=json.dumps(case["schema"]))
    assert isinstance(refusal, Refusal)
    assert case["refused"] in refusal.message
    assert refusal.param == "structured_outputs.json"
    assert refusal.status == 400
    assert len(refusal.message) < 500 and "\n" not in refusal.message


def test_all_that_cannot_be_enforced_is_named_at_once() -> None:
    refused = {"not": {}, "properties": {"a": {"uniqueItems": True}, "b": {"if": {}, "then": {}}}}
    with pytest.raises(Exception, match="if, not, then, uniqueItems"):
        read_schema(refused)


@pytest.mark.parametrize(
    "shape",
    [
        {"type": ["string", 3]},
        {"required": [3]},
        {"enum": 3},
        {"anyOf": {}},
        {"pattern": 3},
        {"format": []},
        {"$ref": {}},
        {"$defs": 3},
        {"properties": {"a": None}},
        {"minimum": "x", "type": "integer"},
        {"type": "string", "minLength": -1},
        {"type": "array", "minItems": "x"},
    ],
    ids=json.dumps,
)
def test_a_keyword_of_the_wrong_shape_is_a_refusal(
    shape: dict[str, Any], engines: GrammarEngines
) -> None:
    assert isinstance(compiled(engines, json=json.dumps(shape)), Refusal)
