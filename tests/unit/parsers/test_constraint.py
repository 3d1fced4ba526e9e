"""Whatever a constraint allows, the parser reads back as calls that follow their schemas."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import xgrammar as xgr

from tests.unit.parsers.reading import read
from tests.unit.parsers.walks import walker
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.errors import RequestError
from vllm_lite.parsers import registry
from vllm_lite.parsers.events import ParsedMessage
from vllm_lite.parsers.tools.constraint import has_own_envelope, tool_constraint
from vllm_lite.parsers.tools.envelopes import ENVELOPES
from vllm_lite.parsers.tools.spec import NamedTool, ToolChoice, ToolSpec, argument_schema
from vllm_lite.structured_output.canonical import canonical
from vllm_lite.structured_output.compiler import Compiled, GrammarEngines
from vllm_lite.structured_output.grammar import Vocabulary

TREE = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    },
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = (
    ToolSpec(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "tree": {"$ref": "#/$defs/Tree"},
                "unit": {"enum": ["deg C", "F"]},
            },
            "required": ["city", "unit"],
            "$defs": {"Tree": TREE},
        },
    ),
    ToolSpec("ping", {}),
    ToolSpec(
        "measure",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string", "minLength": 2, "maxLength": 5},
                "factor": {"type": ["number", "null"]},
                "exact": {"type": "boolean"},
            },
            "required": ["text", "factor"],
        },
        strict=True,
    ),
)
# What tags cannot say exactly, and so no format of tags is used for it.
PATTERN = ToolSpec(
    "tag",
    {"type": "object", "properties": {"t": {"type": "string", "pattern": "^a+$"}}},
)
UNION = ToolSpec("either", {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
CHOICES: list[ToolChoice] = ["required", *(NamedTool(tool.name) for tool in TOOLS)]
NUM_WALKS = 6
PARSERS = sorted(set(registry.tool_parser_names()) - {"hf"})  # that is the tokenizer's affair


def texts(parser: str | None, tools: tuple[ToolSpec, ...], choice: ToolChoice) -> list[str]:
    """Texts that a model could write under the constraint."""
    params = tool_constraint(parser, tools, choice)
    assert params is not None
    marks: list[str] = []
    ends: list[str] = []
    envelope = ENVELOPES.get(parser or "")
    if envelope is not None:
        ends = [envelope.argument_end, envelope.call_end, envelope.end]
        marks = [envelope.begin, envelope.separator, envelope.before, *ends]
        marks += [envelope.call.replace("{name}", tool.name) for tool in tools]
        marks += [piece for mark in marks for piece in re.findall(r"<[^<>]*>|[^<>]+", mark)]
    walk = walker(tuple(sorted({*marks} - {""})), tuple({*ends} - {""}))
    grammar = walk.compile(params)
    found = [walk.walk(grammar, seed) for seed in range(NUM_WALKS)]
    return [text for text in found if text is not None]


def check(message: ParsedMessage, tools: tuple[ToolSpec, ...]) -> None:
    specs = {tool.name: tool for tool in tools}
    assert message.tool_calls and message.content is None, message
    for call in message.tool_calls:
        assert call.complete, message
        jsonschema.validate(json.loads(call.arguments), argument_schema(specs[call.name]))


@pytest.mark.parametrize("parser", [None, *PARSERS])
def test_a_forced_call_is_read_back_as_its_schema_says(parser: str | None) -> None:
    num_texts = 0
    for choice in CHOICES:
        for text in texts(parser, TOOLS, choice):
            message = read(text, tool_parser=parser, tools=TOOLS, tool_choice=choice)
            check(message, TOOLS)
            if isinstance(choice, NamedTool):
                assert [call.name for call in message.tool_calls] == [choice.name]
            num_texts += 1
    assert num_texts > len(CHOICES)


@pytest.mark.parametrize("tool", [PATTERN, UNION], ids=lambda tool: tool.name)
def test_values_that_tags_cannot_express_are_forced_as_json(tool: ToolSpec) -> None:
    tools = (*TOOLS, tool)
    assert not has_own_envelope("qwen3_xml", tools, "required")
    assert has_own_envelope("hermes", tools, "required")
    assert has_own_envelope("qwen3_xml", tools, NamedTool("ping"))
    params = tool_constraint("qwen3_xml", tools, "required")
    assert params is not None and isinstance(params.json, dict)
    message = read(
        f'[{{"name": "{tool.name}", "parameters": {{"t": "aa"}}}}]',
        tool_parser="qwen3_xml",
        tools=tools,
        tool_choice="required",
    )
    assert [call.arguments for call in message.tool_calls] == ['{"t": "aa"}']


@pytest.mark.parametrize("choice", ["required", NamedTool("get_weather")])
def test_the_engines_take_every_constraint(choice: ToolChoice) -> None:
    tokens = [bytes([value]) for value in range(256)]
    engines = GrammarEngines(Vocabulary([*tokens, b"</s>"], frozenset({256}), (256,)))
    for parser in ("qwen3_xml", "hermes", None):
        params = tool_constraint(parser, TOOLS, choice)
        assert params is not None
        found = engines.compile(canonical(params, StructuredOutputsConfig()))
        assert isinstance(found, Compiled), found


def test_references_follow_a_schema_that_becomes_a_part_of_another() -> None:
    params = tool_constraint(None, TOOLS, "required")
    assert params is not None and isinstance(params.json, dict)
    good = [{"name": "get_weather", "parameters": {"city": "x", "unit": "F", "tree": {"a": "y"}}}]
    jsonschema.validate(good, params.json)
    bad: list[Any] = [
        {"name": "get_weather", "parameters": {"city": "x", "unit": "F", "tree": {"b": []}}}
    ]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, params.json)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([], params.json)


def test_every_way_to_refer_is_followed() -> None:
    tool = ToolSpec(
        "refer",
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/A"},
                "b": {"$ref": "#/definitions/A"},
                "c": {"$ref": "#/properties/a"},
                "d": {"$ref": "#"},
            },
            "$defs": {"A": {"type": "integer"}},
            "definitions": {"A": {"type": "string"}},
        },
    )
    params = tool_constraint(None, (*TOOLS, tool), "required")
    assert params is not None and isinstance(params.json, dict)
    good = {"a": 1, "b": "x", "c": 2, "d": {"a": 3}}
    jsonschema.validate([{"name": "refer", "parameters": good}], params.json)
    for bad in ({"a": "x"}, {"b": 1}, {"c": "x"}, {"d": {"a": "x"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{"name": "refer", "parameters": bad}], params.json)


def test_a_property_may_be_called_like_a_keyword() -> None:
    tool = ToolSpec(
        "odd",
        {
            "type": "object",
            "properties": {"$ref": {"type": "string"}, "enum": {"$ref": "#/$defs/E"}},
            "$defs": {"E": {"const": {"$ref": "#/data"}}},
        },
    )
    params = tool_constraint(None, (tool,), "required")
    assert params is not None and isinstance(params.json, dict)
    call = {"name": "odd", "parameters": {"$ref": "x", "enum": {"$ref": "#/data"}}}
    jsonschema.validate([call], params.json)


def test_a_free_choice_is_constrained_only_by_strict_tools() -> None:
    assert tool_constraint("hermes", TOOLS[:2], "auto") is None
    assert tool_constraint("hermes", TOOLS, "none") is None
    assert tool_constraint("llama3_json", TOOLS, "auto") is None  # prose may begin so
    params = tool_constraint("hermes", TOOLS, "auto")
    assert params is not None and params.structural_tag is not None
    assert json.loads(params.structural_tag)["format"]["type"] == "triggered_tags"


@pytest.mark.parametrize("parser", sorted(set(ENVELOPES) - {"llama3_json", "llama4_json"}))
def test_calls_within_free_text_follow_the_schemas_of_strict_tools(parser: str) -> None:
    strict = TOOLS[2]
    params = tool_constraint(parser, (strict,), "auto")
    assert params is not None
    envelope = ENVELOPES[parser]
    ends = (envelope.argument_end, envelope.call_end, envelope.end)
    call = envelope.call.replace("{name}", strict.name).replace("{index}", "0")
    marks = {envelope.begin, call, *ends} | set(envelope.call.split("{")[:1])
    walk = walker(tuple(sorted(marks - {""})), tuple({*ends} - {""}))
    grammar = walk.compile(params)
    for seed in range(NUM_WALKS):
        text = walk.walk(grammar, seed)
        message = read(text or "", tool_parser=parser, tools=(strict,), tool_choice="auto")
        for found in message.tool_calls:
            assert found.name == strict.name
            jsonschema.validate(json.loads(found.arguments), argument_schema(strict))


def test_tool_that_is_not_strict_stays_free_next_to_a_strict_one() -> None:
    tools = (TOOLS[2], ToolSpec("loose", {"properties": {"a": {"type": "integer"}}}))
    for parser, text in (
        ("hermes", '<tool_call>\n{"name": "loose", "arguments": {"a": "x"}}\n</tool_call>'),
        (
            "qwen3_xml",
            "<tool_call>\n<function=loose>\n<parameter=a>\nx\n</parameter>\n</function>\n"
            "</tool_call>",
        ),
    ):
        params = tool_constraint(parser, tools, "auto")
        assert params is not None
        walk = walker(("<", ">"), ())
        matcher = xgr.GrammarMatcher(walk.compile(params))
        assert matcher.accept_string("Yes. " + text)
        (call,) = read(text, tool_parser=parser, tools=tools).tool_calls
        assert call.arguments == '{"a": "x"}'


@pytest.mark.parametrize(
    "schema",
    [
        {"type": [{}], "properties": []},
        {"type": "object", "properties": {"a": 1, "b": {"type": [{}], "enum": 3}}, "required": 7},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": "x"}}},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": []}}},
        {"type": "object", "properties": {"a": {"const": {}, "enum": 1}}, "required": [{}]},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"$ref": "#"},
    ],
)
def test_invalid_schema_is_left_to_the_compiler(schema: dict[str, Any]) -> None:
    tool = ToolSpec("odd", schema, strict=True)
    for parser in ("qwen3_xml", "hermes", None):
        for choice in ("required", NamedTool("odd")):
            tool_constraint(parser, (tool,), choice)
        if parser == "qwen3_xml":
            with pytest.raises(RequestError, match=r"odd has .* drop strict"):
                tool_constraint(parser, (tool,), "auto")
        text = "<tool_call><function=odd><parameter=a>1</parameter></function></tool_call>"
        assert read(text, tool_parser="qwen3_xml", tools=(tool,)).tool_calls


def test_one_call_at_most_where_parallel_calls_are_off() -> None:
    params = tool_constraint(None, TOOLS, "required", parallel_tool_calls=False)
    assert params is not None and isinstance(params.json, dict)
    assert params.json["maxItems"] == 1


def test_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(RequestError, match="no tool is named other") as refused:
        tool_constraint("hermes", TOOLS, NamedTool("other"))
    assert refused.value.param == "tool_choice"


def test_schemas_that_are_too_large_together_name_the_tools() -> None:
    huge = ToolSpec("huge", {"type": "object", "description": "x" * (1 << 19)})
    with pytest.raises(RequestError) as refused:
        tool_constraint("hermes", (huge,), "required")
    assert refused.value.param == "tools"
