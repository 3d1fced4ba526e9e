"""A schema means the same wherever it stands: alone, in a structural tag, as a tool's."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from tests.unit.parsers.reading import read
from tests.unit.structured_output.test_schemas import CHECKED, ENFORCED, REFUSED, name
from tests.unit.structured_output.walks import compiled, follows, walk
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.errors import RequestError
from vllm_lite.parsers.tools.constraint import tool_constraint
from vllm_lite.parsers.tools.spec import NamedTool, ToolChoice, ToolSpec
from vllm_lite.structured_output.canonical import canonical
from vllm_lite.structured_output.compiler import GUIDANCE, XGRAMMAR, GrammarEngines
from vllm_lite.structured_output.grammar import CompiledGrammar, Refusal

BEGIN, END = "<f>", "</f>"
# Those that xgrammar alone would not hold.
HARD: list[dict[str, Any]] = [
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
    {"type": "string", "pattern": "^[ab]+$", "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "integer", "multipleOf": 7},
    {"type": "string", "format": "date"},
    {"type": "integer", "minimum": 2**62, "maximum": 2**62 + 3},
    {"const": 2**63 - 1},
    {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "string", "maxLength": 2}]},
]
UNEXACT: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer", "minimum": 2**63}, "64 bits"),
    ({"type": "integer", "maximum": -(2**64)}, "64 bits"),
    ({"type": "number", "minimum": 2**53 + 1}, "doubles"),
    ({"type": "number", "maximum": 10**400}, "doubles"),
    ({"const": 10**30}, "digits"),
    ({"enum": [{"a": [-(2**64) - 1]}]}, "digits"),
    ({"type": "integer", "minimum": 2**60, "multipleOf": 7}, "multipleOf"),
    ({"type": "array", "items": [{"const": 2**60}]}, "items as a list"),
    ({"type": "integer", "minimum": True}, "minimum must be a number"),
    ({"type": "array", "minItems": 2**40}, "minItems"),
    ({"type": "string", "maxLength": 1.5}, "maxLength must be a whole"),
    ({"type": "integer", "multipleOf": 0}, "multipleOf must be"),
]


def form_of(schema: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": BEGIN, "content": content, "end": END}


def tags_of(schema: Any) -> list[str]:
    """Both shapes, and the newer one where calls are free."""
    one = {"begin": BEGIN, "schema": schema, "end": END}
    free = {"type": "triggered_tags", "triggers": ["<f"], "tags": [form_of(schema)]}
    tags = [{"structures": [one], "triggers": ["<f"]}]
    tags += [{"type": "structural_tag", "format": form} for form in (form_of(schema), free)]
    return [json.dumps(tag) for tag in tags]


def tagged(engines: GrammarEngines, tag: str, rng: random.Random) -> list[Any]:
    """The JSON in some texts that the tag allows."""
    grammar = compiled(engines, structural_tag=tag)
    assert not isinstance(grammar, Refusal), grammar.message
    found = []
    for _ in range(3):
        text = walk(grammar, rng, begin=BEGIN.encode())
        if text is not None:
            start = text.decode(errors="replace").removeprefix(BEGIN).lstrip()
            value, end = json.JSONDecoder().raw_decode(start)
            assert start[end:].lstrip().startswith(END)
            found.append(value)
    return found


@pytest.mark.parametrize("case", ENFORCED, ids=name)
def test_every_tagged_text_validates(case: dict[str, Any], engines: GrammarEngines) -> None:
    rng = random.Random(name(case))
    for value in tagged(engines, rng.choice(tags_of(case["schema"])), rng):
        jsonschema.validate(value, case["schema"], format_checker=CHECKED)


@pytest.mark.parametrize("schema", HARD, ids=json.dumps)
def test_what_one_engine_lacks_holds_in_every_tag(
    schema: dict[str, Any], engines: GrammarEngines
) -> None:
    for tag in tags_of(schema):
        values = tagged(engines, tag, random.Random(tag))
        assert values
        for value in values:
            jsonschema.validate(value, schema, format_checker=CHECKED)


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_a_tag_is_refused_as_its_schema_is(case: dict[str, Any], engines: GrammarEngines) -> None:
    for tag in tags_of(case["schema"]):
        refusal = compiled(engines, structural_tag=tag)
        assert isinstance(refusal, Refusal)
        assert case["refused"] in refusal.message
        assert refusal.param == "structured_outputs.structural_tag"


@pytest.mark.parametrize(("schema", "word"), UNEXACT)
def test_numbers_are_exact_or_refused_everywhere(
    schema: dict[str, Any], word: str, engines: GrammarEngines
) -> None:
    for place in ({"json": schema}, *({"structural_tag": tag} for tag in tags_of(schema))):
        refusal = compiled(engines, **place)
        assert isinstance(refusal, Refusal) and word in refusal.message, refusal
    if schema.get("type") != "number":
        only = GrammarEngines(engines.vocabulary, GUIDANCE)
        assert isinstance(compiled(only, json=schema), Refusal)


SPACED = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "null"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
WRITTEN = [
    '{"a": [1, 2], "b": null}',
    '{"a":[1,2],"b":null}',
    '{"a": [1,\t2],\n"b":  null}',
    '{"a": [1, 2], "b":' + 33 * " " + "null}",
]
SPACES: list[tuple[dict[str, Any], list[bool]]] = [
    ({}, [True, True, True, False]),
    ({"disable_any_whitespace": True}, [True, False, False, False]),
    ({"whitespace_pattern": " ?"}, [True, True, False, False]),
    ({"whitespace_pattern": "[\\s]*"}, [True, True, True, True]),
]


@pytest.mark.parametrize(("options", "are_taken"), SPACES)
def test_white_space_is_free_in_a_tag_as_it_is_without(
    options: dict[str, Any], are_taken: list[bool], one_engine: GrammarEngines
) -> None:
    for place in ("", *tags_of(SPACED)):
        where = {"structural_tag": place} if place else {"json": SPACED}
        grammar = compiled(one_engine, **where, **options)
        if isinstance(grammar, Refusal):
            assert "whitespace_pattern" in grammar.message and "pattern" in str(options)
            continue
        begin, end = (BEGIN, END) if place else ("", "")
        texts = [f"{begin}{text}{end}".encode() for text in WRITTEN]
        assert [follows(grammar, text) for text in texts] == are_taken, where


def test_white_space_beside_excluded_texts_is_short_or_refused(engines: GrammarEngines) -> None:
    content = {"type": "json_schema", "json_schema": SPACED, "excludes": ["<"]}
    tag = json.dumps({"format": {**form_of(SPACED), "content": content}})
    grammar = compiled(engines, structural_tag=tag, disable_any_whitespace=True)
    assert not isinstance(grammar, Refusal), grammar.message
    texts = [f"{BEGIN}{text}{END}".encode() for text in WRITTEN]
    assert [follows(grammar, text) for text in texts] == [True, True, False, False]
    refusal = compiled(engines, structural_tag=tag, whitespace_pattern=" ?")
    assert isinstance(refusal, Refusal) and "excludes" in refusal.message


def test_a_limit_that_nothing_reaches_is_none(engines: GrammarEngines) -> None:
    grammar = compiled(engines, json={"type": "array", "maxItems": 2**60})
    assert not isinstance(grammar, Refusal) and follows(grammar, b"[1]")


def test_one_of_is_refused_with_what_to_write(engines: GrammarEngines) -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    for place in ({"json": schema}, {"structural_tag": tags_of(schema)[0]}):
        refusal = compiled(engines, **place)
        assert isinstance(refusal, Refusal)
        assert "write anyOf" in refusal.message and "coerce" not in refusal.message


def test_a_part_that_only_xgrammar_knows_is_named(engines: GrammarEngines) -> None:
    content = {"type": "json_schema", "json_schema": HARD[1], "style": "qwen_xml"}
    form = {**form_of(HARD[1]), "content": content}
    tag = json.dumps({"type": "structural_tag", "format": form})
    refusal = compiled(engines, structural_tag=tag)
    assert isinstance(refusal, Refusal)
    assert "maxLength" in refusal.message and "style" in refusal.message
    alone = compiled(
        GrammarEngines(engines.vocabulary, XGRAMMAR), structural_tag=tags_of(HARD[1])[0]
    )
    assert isinstance(alone, Refusal) and "guidance may" in alone.message


FORMS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "sequence": (
        {
            "type": "sequence",
            "elements": [
                {"type": "optional", "content": {"type": "const_string", "value": "a"}},
                {"type": "regex", "pattern": "^[0-9]{2}$"},
                {"type": "const_string", "value": "é\n"},
            ],
        },
        ["12é\n", "a12é\n"],
        ["a1é\n", "aa12é\n", "12"],
    ),
    "free text in a tag": (
        {
            "type": "tag",
            "begin": "<",
            "content": {"type": "any_text", "excludes": ["no"]},
            "end": ">",
        },
        ["<>", "<a b>", "<n o>"],
        ["<a>b>", "<no>", "<a"],
    ),
    "several": (
        {
            "type": "tags_with_separator",
            "tags": [form_of({"type": "boolean"}), {**form_of({"type": "null"}), "begin": "<g>"}],
            "separator": ", ",
            "at_least_one": True,
        },
        ["<f>true</f>", "<f>true</f>, <g>null</f>"],
        ["", "<f>null</f>", "<f>true</f>,<g>null</f>", "<f>true</f>, "],
    ),
    "one of several": (
        {
            "type": "tags_with_separator",
            "tags": [form_of({"type": "boolean"})],
            "separator": "",
            "stop_after_first": True,
        },
        ["", "<f>true</f>"],
        ["<f>true</f><f>true</f>"],
    ),
    "triggers": (
        {
            "type": "triggered_tags",
            "triggers": ["<f", "<g"],
            "tags": [form_of({"type": "boolean"}), {**form_of({"type": "null"}), "begin": "<g>"}],
        },
        ["", "text", "a<f>true</f>b<g>null</f>", "<"],
        ["<f>null</f>", "<g>true</f>", "<fa>", "a<f>true"],
    ),
    "a trigger at once": (
        {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [form_of({"type": "boolean"})],
            "at_least_one": True,
            "stop_after_first": True,
        },
        ["<f>true</f>"],
        ["", "a", "a<f>true</f>", "<f>true</f>b"],
    ),
    "repeats": (
        {
            "type": "sequence",
            "elements": [
                {"type": "plus", "content": {"type": "const_string", "value": "a"}},
                {"type": "star", "content": {"type": "const_string", "value": "b"}},
                {
                    "type": "repeat",
                    "min": 1,
                    "max": 2,
                    "content": {"type": "const_string", "value": "c"},
                },
                {
                    "type": "or",
                    "elements": [{"type": "const_string", "value": one} for one in "xy"],
                },
            ],
        },
        ["acx", "aabbccy"],
        ["bcx", "accc", "acz"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_both_engines_read_a_tag_alike(form: str, one_engine: GrammarEngines) -> None:
    tag, good, bad = FORMS[form]
    grammar = compiled(one_engine, structural_tag=json.dumps({"format": tag}))
    assert not isinstance(grammar, Refusal), grammar.message
    assert [text for text in good if not follows(grammar, text.encode())] == []
    assert [text for text in bad if follows(grammar, text.encode())] == []


def call_grammar(
    engines: GrammarEngines, parser: str | None, tool: ToolSpec, choice: ToolChoice
) -> CompiledGrammar | Refusal:
    params = tool_constraint(parser, (tool,), choice)
    assert params is not None
    found = engines.compile(canonical(params, StructuredOutputsConfig()))
    return found if isinstance(found, Refusal) else engines.open(found)


@pytest.mark.parametrize("parser", ["hermes", "qwen3_xml", "deepseek_v31", "mistral", None])
@pytest.mark.parametrize("schema", HARD, ids=json.dumps)
def test_forced_calls_hold_what_a_schema_alone_holds(
    schema: dict[str, Any], parser: str | None, engines: GrammarEngines
) -> None:
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    tool = ToolSpec("f", {**whole, "additionalProperties": False}, strict=True)
    for choice in ("required", NamedTool("f")):
        grammar = call_grammar(engines, parser, tool, choice)
        assert not isinstance(grammar, Refusal), grammar.message
        rng = random.Random(1)
        texts = [text for text in (walk(grammar, rng) for _ in range(2)) if text is not None]
        for text in texts:
            said = text.decode(errors="replace")
            message = read(said, tool_parser=parser, tools=(tool,), tool_choice=choice)
            for call in message.tool_calls:
                jsonschema.validate(json.loads(call.arguments), tool.parameters)


@pytest.mark.parametrize("parser", ["hermes", "qwen3_xml", "deepseek_v31", "mistral"])
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_strict_tools_are_refused_as_their_schemas_are(
    parser: str, choice: ToolChoice, engines: GrammarEngines
) -> None:
    tool = ToolSpec("f", {"properties": {"v": {"not": {"type": "string"}}}}, strict=True)
    try:
        refusal = call_grammar(engines, parser, tool, choice)
    except RequestError as error:
        assert choice == "auto" and "drop strict" in error.message
        return
    assert isinstance(refusal, Refusal) and "not" in refusal.message
