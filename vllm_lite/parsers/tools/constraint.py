"""The constraint that makes a model write calls of a request's tools, arguments and all.

Builds data for a grammar engine (xgrammar's structural tags, or a JSON schema); knows none.
Invariant: what the constraint allows, the parser that the same request gets reads back as calls
whose arguments follow their tools' schemas. Where a format cannot say a schema exactly, all calls
of the request are forced as plain JSON, by `has_own_envelope`, which both sides ask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_lite.errors import RequestError
from vllm_lite.parsers.registry import tool_format
from vllm_lite.parsers.tools.envelopes import ENVELOPES, Envelope
from vllm_lite.parsers.tools.spec import (
    MAX_WHITESPACE,
    NamedTool,
    ToolChoice,
    ToolSpec,
    argument_schema,
    as_definitions,
    has_keyword,
    is_forced,
    resolve,
    schema_types,
)
from vllm_lite.parsers.tools.xml_calls import XmlTools
from vllm_lite.structured_output.grammar import GrammarError
from vllm_lite.structured_output.schema import ASSERTIONS, FORMATS, read_schema
from vllm_lite.structured_outputs_params import StructuredOutputsParams

_SAFE_KEY = re.compile(r"[^\s<>\"'&=|:{}]{1,128}")
_OF_OBJECTS = frozenset(("type", "properties", "required", "additionalProperties"))
_STRING_RULES = ASSERTIONS - {"type", "$ref", "anyOf"}
_MAX_LENGTH = 1 << 20
Format = dict[str, Any]
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_INDEX = {"type": "regex", "pattern": "[0-9]{1,3}"}


def tagged_arguments(xml: XmlTools, envelope: Envelope, tool: ToolSpec) -> Format | None:
    """The arguments of `tool`, required ones always; None where tags cannot say its schema."""
    schema = argument_schema(tool)
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if ASSERTIONS & set(schema) - _OF_OBJECTS or schema.get("type") != "object":
        return None
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    if any(not isinstance(key, str) or key not in properties for key in required):
        return None
    if not properties:
        # With free arguments there are no elements to name.
        return None if schema.get("additionalProperties") else _text("")
    elements = []
    for key, part in properties.items():
        element = _argument(xml, envelope, key, part, schema)
        if element is None:
            return None
        elements.append(element if key in required else {"type": "optional", "content": element})
    return {"type": "sequence", "elements": elements} if len(elements) > 1 else elements[0]


def _argument(
    xml: XmlTools, envelope: Envelope, key: str, part: object, root: Mapping[str, Any]
) -> Format | None:
    if not _SAFE_KEY.fullmatch(key) or not isinstance(part, Mapping):
        return None
    types = schema_types(part, root)
    part = _followed(part, root)
    if types == {"string"}:
        value = _string(xml, part)
        return value and _element(envelope, key, "string", value)
    if types == {"string", "null"}:
        if has_keyword(part, _STRING_RULES):
            return None
        text = _element(envelope, key, "string", _free_text(xml))
        null = _element(envelope, key, "null", _text("null"))
        return {"type": "or", "elements": [null, text]}
    if not types or "string" in types:
        return None
    said = types - {"null"} or types
    if len(said) > 1 and not said <= {"integer", "number"}:
        return None  # the tag may have to name one
    document = {name: root[name] for name in ("$defs", "definitions") if name in root}
    document.update(part)
    if not _is_plain_json(document):
        return None
    value = {
        "type": "json_schema",
        "json_schema": document,
        "excludes": list(_excluded(xml)),
        "max_whitespace_cnt": MAX_WHITESPACE,
    }
    name = "number" if said <= {"integer", "number"} else min(said)
    return _element(envelope, key, name, value)


def _followed(part: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The target of a plain reference if that is a string type, whose rules are checked here."""
    for _ in range(8):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            break
        target = resolve(reference, root)
        if not isinstance(target, Mapping):
            break
        part = target
    return part


def _string(xml: XmlTools, part: Mapping[str, Any]) -> Format | None:
    rules = ASSERTIONS & set(part) - {"type"}
    if rules == {"format"} and part["format"] not in FORMATS:
        rules = frozenset()
    if not any(rules <= known for known in ({"const"}, {"enum"}, {"minLength", "maxLength"})):
        return None
    choices = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(choices, list):
        if not choices or not all(_is_plain(xml, choice) for choice in choices):
            return None
        texts = [_text(choice) for choice in choices]
        return texts[0] if len(texts) == 1 else {"type": "or", "elements": texts}
    least, most = part.get("minLength", 0), part.get("maxLength")
    if not isinstance(least, int) or not isinstance(most, int | None) or least > _MAX_LENGTH:
        return None
    text = _free_text(xml)
    if most is not None:
        if most < least:
            return None
        text["max_chars"] = min(most - least, _MAX_LENGTH)
    if not least:
        return text
    # The first characters exclude those that begin a tag.
    first = {"type": "regex", "pattern": f"[^<]{{{least}}}"}
    return {"type": "sequence", "elements": [first, text]}


def _is_plain_json(document: Any) -> bool:
    """Whether an engine enforces a schema that also keeps marks out of the texts in it."""
    try:
        return not read_schema(document)[1].xgrammar
    except GrammarError:
        return False


def _is_plain(xml: XmlTools, choice: object) -> bool:
    if not isinstance(choice, str) or not choice or choice != choice.strip():
        return False
    return not any(mark in choice for mark in _excluded(xml))


def _free_text(xml: XmlTools) -> Format:
    return {"type": "any_text", "excludes": list(_excluded(xml))}


def _excluded(xml: XmlTools) -> tuple[str, ...]:
    return (xml.value_end, xml.parameter.start, xml.call_end)


def _element(envelope: Envelope, key: str, said: str, value: Format) -> Format:
    is_string = "true" if said == "string" else "false"
    begin = envelope.argument.replace("{key}", key).replace("{type}", said)
    begin = begin.replace("{is_string}", is_string)
    return {"type": "tag", "begin": begin, "content": value, "end": envelope.argument_end}


def tool_constraint(
    tool_parser: str | None,
    tools: Sequence[ToolSpec],
    tool_choice: ToolChoice,
    *,
    parallel_tool_calls: bool = True,
    guards_free_calls: bool = False,
) -> StructuredOutputsParams | None:
    """The constraint on the answer for `tool_choice`; None where it is free.

    A forced choice always carries the schemas of the arguments; a free one does where a tool is
    strict and the format has marks of its own. Where it `guards_free_calls`, a free call has its
    form and one of the names in any case. Raises RequestError where the tool of a named
    choice is missing, or the schemas together are too large.
    """
    if tool_choice == "none" or not tools:
        return None
    chosen = list(tools)
    if isinstance(tool_choice, NamedTool):
        chosen = [tool for tool in tools if tool.name == tool_choice.name]
        if not chosen:
            raise RequestError(f"tool_choice: no tool is named {tool_choice.name}", "tool_choice")
    only_one = isinstance(tool_choice, NamedTool) or not parallel_tool_calls
    forced = is_forced(tool_choice)
    envelope = ENVELOPES.get(tool_parser or "")
    try:
        if envelope and tool_parser and has_own_envelope(tool_parser, tools, tool_choice):
            tags = [_call(tool_parser, envelope, tool) for tool in chosen]
            calls = _calls(tags, envelope.separator, only_one)
            return _structural_tag(_forced(envelope, calls))
        if forced:
            if isinstance(tool_choice, NamedTool):
                return StructuredOutputsParams(json=argument_schema(chosen[0]))
            plain = _array(chosen)
            if only_one:
                plain["maxItems"] = 1
            return StructuredOutputsParams(json=plain)
        is_guarded = guards_free_calls or any(tool.strict for tool in chosen)
        if tool_parser and envelope and not envelope.is_bare and is_guarded:
            return _free(tool_parser, envelope, chosen, only_one)
    except RequestError as error:
        message = f"tools: their schemas make no constraint: {error.message}"
        raise RequestError(message, "tools") from error
    except RecursionError:
        raise RequestError("tools: a schema is nested too deeply", "tools") from None
    return None


def has_own_envelope(
    tool_parser: str | None, tools: Sequence[ToolSpec], tool_choice: ToolChoice
) -> bool:
    """Whether a forced call is written in the model's own format, not as plain JSON."""
    if not is_forced(tool_choice) or not tool_parser or tool_parser not in ENVELOPES:
        return False
    return all(
        _call(tool_parser, ENVELOPES[tool_parser], tool) is not None
        for tool in tools
        if not isinstance(tool_choice, NamedTool) or tool.name == tool_choice.name
    )


def _call(
    tool_parser: str, envelope: Envelope, tool: ToolSpec, *, is_loose: bool = False
) -> Format | None:
    """A call of `tool`; None where the format cannot say its name or its schema.

    A loose one may have any arguments.
    """
    if not _SAFE_NAME.fullmatch(tool.name):
        return None
    arguments: Format | None
    if envelope.argument:
        xml = tool_format(tool_parser)
        xml = getattr(xml, "xml", None) or xml
        if not isinstance(xml, XmlTools):
            return None
        any_text = {"type": "any_text", "excludes": [xml.call_end]}
        arguments = any_text if is_loose else tagged_arguments(xml, envelope, tool)
    else:
        arguments = {
            "type": "json_schema",
            "json_schema": {"type": "object"} if is_loose else argument_schema(tool),
            "max_whitespace_cnt": MAX_WHITESPACE,
        }
    if arguments is None:
        return None
    begin, has_index, rest = envelope.call.replace("{name}", tool.name).partition("{index}")
    if has_index:
        arguments = _sequence(_INDEX, _text(rest), arguments)
    return {"type": "tag", "begin": begin, "content": arguments, "end": envelope.call_end}


def _calls(tags: Sequence[Format | None], separator: str, only_one: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": [tag for tag in tags if tag is not None],
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": only_one,
    }


def _forced(envelope: Envelope, calls: Format) -> Format:
    parts = [_text(envelope.begin), calls, _text(envelope.end)]
    if envelope.before:
        parts.insert(0, {"type": "optional", "content": _text(envelope.before)})
    return _sequence(*(part for part in parts if part.get("value") != ""))


def _free(
    tool_parser: str, envelope: Envelope, tools: Sequence[ToolSpec], only_one: bool
) -> StructuredOutputsParams | None:
    """Any text, but calls in it follow the schemas of strict tools."""
    calls = [_call(tool_parser, envelope, tool, is_loose=not tool.strict) for tool in tools]
    if None in calls:
        if not any(tool.strict for tool in tools):
            return None
        raise RequestError(
            f"{tools[calls.index(None)].name} has a name or a schema that the calls of "
            f"--tool-call-parser {tool_parser} cannot say exactly, as strict tools need it; "
            "simplify it, force a call by tool_choice, or drop strict"
        )
    together = _calls(calls, envelope.separator, only_one)
    trigger = envelope.begin or envelope.call.partition("{name}")[0]
    if envelope.begin:
        tags = [{"type": "tag", "begin": trigger, "content": together, "end": envelope.end}]
    else:
        tags = together["tags"]
    return _structural_tag(
        {
            "type": "triggered_tags",
            "triggers": [trigger],
            "tags": tags,
            "at_least_one": False,
            "stop_after_first": only_one,
        }
    )


def _structural_tag(form: Format) -> StructuredOutputsParams:
    tag = {"type": "structural_tag", "format": form}
    return StructuredOutputsParams(structural_tag=json.dumps(tag, ensure_ascii=False))


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _sequence(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def _array(tools: Sequence[ToolSpec]) -> Format:
    calls = []
    schemas: Format = {}
    for number, tool in enumerate(tools):
        part = f"tool_{number}"
        schemas |= as_definitions(argument_schema(tool), part)
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "parameters": {"$ref": f"#/$defs/{part}"},
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    return {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": schemas}
