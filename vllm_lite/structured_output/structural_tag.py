"""Structural tags: text around JSON, in either of their two forms, as xgrammar takes them.

The schemas inside are read as any other is; what they say of the length of a string is written
as a pattern, since xgrammar's own would let control characters in.
Source: xgrammar's documentation of structural tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_lite.structured_output.grammar import GrammarError
from vllm_lite.structured_output.schema import Schema, read_schema

MAX_DEPTH = 32

# A character of a JSON string that is written as itself.
_CHARACTER = r'[^"\\\u0000-\u001f]'
_DATA = frozenset(("const", "enum", "default", "examples"))


def read_structural_tag(text: str) -> dict[str, Any]:
    """The tag that `text` describes, in the newer form. Raises GrammarError."""
    tag = json.loads(text)
    if "format" in tag:
        return {"type": "structural_tag", "format": _read(tag["format"], 0)}
    if "structures" not in tag:
        raise GrammarError("a structural_tag has a format, or structures and triggers")
    triggers, structures = tag.get("triggers"), tag["structures"]
    if not isinstance(structures, list) or not _are_texts(triggers):
        raise GrammarError("structures and triggers of a structural_tag must be lists")
    tags = [_read(_from_structure(one, triggers), 0) for one in structures]
    form = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    return {"type": "structural_tag", "format": form}


def _from_structure(structure: Any, triggers: list[str]) -> dict[str, Any]:
    begin, end = (
        (structure.get("begin"), structure.get("end")) if isinstance(structure, dict) else (0, 0)
    )
    if not isinstance(begin, str) or not isinstance(end, str):
        raise GrammarError("a structure of a structural_tag has begin, schema and end")
    if not any(begin.startswith(trigger) for trigger in triggers):
        raise GrammarError(f"no trigger begins the structural_tag's {begin!r:.80}")
    content = {"type": "json_schema", "json_schema": structure.get("schema", True)}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _read(part: Any, depth: int) -> Any:
    """A part of a format, with the schemas in it read."""
    if depth > MAX_DEPTH:
        raise GrammarError(f"the structural_tag is deeper than {MAX_DEPTH} levels")
    if isinstance(part, list):
        return [_read(item, depth + 1) for item in part]
    if not isinstance(part, Mapping):
        return part
    found = {}
    for key, value in part.items():
        if key == "json_schema":
            schema, _ = read_schema(value)
            found[key] = _with_lengths_as_patterns(schema)
        else:
            found[key] = _read(value, depth + 1)
    return found


def _with_lengths_as_patterns(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_lengths_as_patterns(item) for item in node]
    if not isinstance(node, dict):
        return node
    found: Schema = {
        key: value if key in _DATA else _with_lengths_as_patterns(value)
        for key, value in node.items()
    }
    least, most = found.get("minLength", 0), found.get("maxLength")
    is_plain = not {"pattern", "format", "enum", "const"} & found.keys()
    if found.get("type") == "string" and is_plain and (least or most is not None):
        found.pop("minLength", None)
        found.pop("maxLength", None)
        found["pattern"] = f"^{_CHARACTER}{{{least},{'' if most is None else most}}}$"
    return found
