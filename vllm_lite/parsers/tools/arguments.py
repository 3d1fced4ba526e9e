"""The arguments of a call written with tags, as a structural tag: an element for each, in order.

A string stands as bare text, so only what bare text can say exactly is built: where a schema asks
for more (a pattern, alternatives that read alike, names with markup), there is no tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllm_lite.parsers.tools.envelopes import Envelope
from vllm_lite.parsers.tools.schema import MAX_WHITESPACE, argument_schema, has_keyword
from vllm_lite.parsers.tools.spec import ToolSpec, resolve, schema_types
from vllm_lite.parsers.tools.xml_calls import XmlTools
from vllm_lite.structured_output.grammar import GrammarError
from vllm_lite.structured_output.schema import ASSERTIONS, FORMATS, read_schema

Format = dict[str, Any]
_SAFE_KEY = re.compile(r"[^\s<>\"'&=|:{}]{1,128}")
_OF_OBJECTS = frozenset(("type", "properties", "required", "additionalProperties"))
_STRING_RULES = ASSERTIONS - {"type", "$ref", "anyOf"}
_MAX_LENGTH = 1 << 20


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
        # Arguments that are all free have no elements that could be named here.
        return None if schema.get("additionalProperties") else _text("")
    elements = []
    for key, part in properties.items():
        element = _argument(xml, envelope, key, part, schema)
        if element is None:
            return None
        elements.append(element if key in required else _optional(element))
    return {"type": "sequence", "elements": elements} if len(elements) > 1 else elements[0]


def free_arguments(xml: XmlTools) -> Format:
    """Whatever arguments a call may have: any text up to its end."""
    return {"type": "any_text", "excludes": [xml.call_end]}


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
    # Tags begin with a character that these first ones leave out.
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


def _optional(element: Format) -> Format:
    return {"type": "optional", "content": element}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}
