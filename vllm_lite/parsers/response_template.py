"""Formats from a tokenizer's `response_template`: what `hf` means for the model that is served.

The template is transformers' (docs/chat_response_parsing): fields with what opens and closes them
and how their content reads. Anchors that say literal strings, white space and one name become the
formats of this package; a template that says more is refused with the field's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_lite.errors import UsageError
from vllm_lite.parsers.literals import ENDS_WORD, JSON, Dialect
from vllm_lite.parsers.reasoning import ReasoningFormat, TaggedReasoning
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.named import NamedTools
from vllm_lite.parsers.tools.reader import ToolFormat
from vllm_lite.parsers.tools.xml_calls import Tag, XmlTools

_THINKING = ("thinking", "reasoning_content")
_FUNCTION = {"type": "function", "function": "{content}"}
_GROUP = re.compile(r"\(\?P<(name|key|value)>(?:\\w\+|\[\^[^\]]*\]\+|\.\*\?|\.\+\?)\)")
_SPACE = re.compile(r"\\s[*+]|\s+")
_ESCAPED = re.compile(r"\\([^A-Za-z0-9])")
_META = re.compile(r"[\\^$.|?*+()\[\]{}]")


@dataclass(frozen=True)
class _Anchor:
    """A pattern taken apart: literal strings, with white space and groups between them."""

    parts: tuple[str, ...]  # a literal, or "name", "key", "value" for a group
    is_group: tuple[bool, ...]

    @property
    def literals(self) -> list[str]:
        return [part for part, group in zip(self.parts, self.is_group, strict=True) if not group]

    @property
    def groups(self) -> list[str]:
        return [part for part, group in zip(self.parts, self.is_group, strict=True) if group]


def template_reasoning(template: object) -> ReasoningFormat:
    """The reasoning format of a template; raises UsageError if it has none that can be read."""
    fields = _fields(template, "--reasoning-parser")
    field = next((fields[name] for name in _THINKING if name in fields), None)
    if field is None:
        raise UsageError(
            "--reasoning-parser hf: the tokenizer's response_template has no thinking field; "
            "name the model's reasoning parser instead"
        )
    starts, ends = _literals(field, "open"), _literals(field, "close")
    if not starts or not ends or field.get("content", "text") != "text" or "transform" in field:
        raise _refused("--reasoning-parser", "thinking")
    calls = fields.get("tool_calls", {})
    anchor = _anchor(calls, "open") if calls else None
    openers = anchor.literals[:1] if anchor else list(_literals(calls, "open"))
    return TaggedReasoning(starts, ends, is_bare=False, implied_ends=tuple(openers))


def template_tools(template: object) -> ToolFormat:
    """The tool format of a template; raises UsageError if it has none that can be read."""
    fields = _fields(template, "--tool-call-parser")
    field = fields.get("tool_calls")
    if not isinstance(field, Mapping):
        raise UsageError(
            "--tool-call-parser hf: the tokenizer's response_template has no tool_calls field; "
            "name the model's tool parser instead"
        )
    anchor = _anchor(field, "open")
    closer = _anchor(field, "close")
    found: ToolFormat | None = None
    if anchor is not None and closer is not None and closer.literals and not closer.groups:
        if field.get("content") == "json":
            found = _json_tools(field, anchor, tuple(closer.literals))
        elif field.get("content") == "xml-inline":
            found = _xml_tools(field, anchor, tuple(closer.literals))
    if found is None:
        raise _refused("--tool-call-parser", "tool_calls")
    return found


def _json_tools(
    field: Mapping[str, Any], anchor: _Anchor, closers: tuple[str, ...]
) -> ToolFormat | None:
    transform, arguments = field.get("transform"), _dialect(field.get("content_args") or {})
    if anchor.groups == ["name"] and _says(transform, "{name}", "{content}") and arguments:
        if anchor.is_group[0] or not anchor.literals:
            return None
        before, after = anchor.parts[: anchor.parts.index("name")], anchor.parts[-1]
        ends = () if anchor.is_group[-1] else (after,)
        lead = "".join(before[1:])
        return NamedTools(before[:1], ends, lead=lead, call_ends=closers, dialect=arguments)
    if anchor.groups or arguments != JSON or not anchor.literals:
        return None
    openers, leads = anchor.parts[:1], anchor.parts[1:]
    if transform == _FUNCTION:
        return JsonTools(openers, closers, leads)
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if not isinstance(function, Mapping):
        return None
    keys = [_key(function.get(key)) for key in ("name", "arguments")]
    if not keys[0] or not keys[1]:
        return None
    return JsonTools(openers, closers, leads, name_keys=(keys[0],), argument_keys=(keys[1],))


def _xml_tools(
    field: Mapping[str, Any], anchor: _Anchor, closers: tuple[str, ...]
) -> ToolFormat | None:
    pattern = (field.get("content_args") or {}).get("tag_pattern")
    tag = _take_apart(pattern) if isinstance(pattern, str) else None
    if tag is None or tag.groups != ["key", "value"] or len(tag.literals) != 3 or tag.is_group[0]:
        return None
    if not _says(field.get("transform"), "{name}", "{content}") or anchor.groups != ["name"]:
        return None
    if anchor.is_group[0] or anchor.is_group[-1]:
        return None
    *openers, call, _, call_end = anchor.parts
    start, key_end, value_end = tag.literals
    return XmlTools(
        openers=tuple(openers[:1]) or (call,),
        bare=() if openers else (call,),
        closers=closers[1:],
        call=Tag(call, call_end),
        call_end=closers[0],
        parameter=Tag(start, key_end),
        value_end=value_end,
        trims_newlines=True,
    )


def _key(placeholder: object) -> str:
    """`arguments` for `{content.arguments}`, or for `{arguments}` of each object of an array."""
    found = re.fullmatch(r"\{(?:content\.)?(\w+)\}", str(placeholder))
    return found.group(1) if found else ""


def _says(transform: object, name: str, arguments: str) -> bool:
    function = transform.get("function") if isinstance(transform, Mapping) else None
    return function == {"name": name, "arguments": arguments}


def _dialect(options: Mapping[str, Any]) -> Dialect | None:
    """How the values of a `json` field are written; None where it is some other way."""
    if not options:
        return JSON
    delimiters = options.get("string_delims", [])
    if set(options) - {"unquoted_keys", "string_delims"}:
        return None
    if any(len(pair) != 2 or pair[0] != pair[1] for pair in delimiters):
        return None
    quotes = (*(pair[0] for pair in delimiters), '"')
    return Dialect(
        quotes, escapes={}, bare_words=ENDS_WORD if options.get("unquoted_keys") else None
    )


def _fields(template: object, flag: str) -> Mapping[str, Any]:
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if not isinstance(fields, Mapping):
        raise UsageError(
            f"{flag} hf: the tokenizer has no response_template; name the model's parser instead"
        )
    return fields


def _refused(flag: str, field: str) -> UsageError:
    return UsageError(
        f"{flag} hf: the response_template's {field} field is more than literal marks around "
        "text, JSON or tags; name the model's parser instead"
    )


def _literals(field: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = field.get(key, ())
    return (value,) if isinstance(value, str) else tuple(value)


def _anchor(field: Mapping[str, Any], key: str) -> _Anchor | None:
    """The opening or closing of a field: one literal, or a pattern that can be taken apart."""
    literals = _literals(field, key)
    if len(literals) == 1:
        return _Anchor(literals, (False,))
    pattern = field.get(f"{key}_pattern")
    return _take_apart(pattern) if isinstance(pattern, str) and not literals else None


def _take_apart(pattern: str) -> _Anchor | None:
    parts: list[str] = []
    is_group: list[bool] = []
    at, literal = 0, ""

    def end_literal() -> None:
        nonlocal literal
        if literal:
            parts.append(literal)
            is_group.append(False)
        literal = ""

    while at < len(pattern):
        if found := _GROUP.match(pattern, at):
            end_literal()
            parts.append(found.group(1))
            is_group.append(True)
        elif found := _SPACE.match(pattern, at):
            end_literal()
        elif found := _ESCAPED.match(pattern, at):
            literal += found.group(1)
        elif _META.match(pattern, at):
            return None
        else:
            literal += pattern[at]
        at = found.end() if found else at + 1
    end_literal()
    return _Anchor(tuple(parts), tuple(is_group))
