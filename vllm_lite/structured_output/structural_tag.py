"""Structural tags: text around JSON, in either of their two forms, as the engines take them.

The schemas and expressions inside are read as any others are.
Source: xgrammar's documentation of structural tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_lite.structured_output.grammar import MAX_WHITESPACE, GrammarError
from vllm_lite.structured_output.patterns import full_match
from vllm_lite.structured_output.schema import Gaps, read_schema

MAX_DEPTH = 32

Tag = dict[str, Any]


def read_structural_tag(text: str, *, close_objects: bool = False) -> tuple[Tag, Gaps]:
    """The tag that `text` describes, in the newer form, and what the engines would not enforce.

    `close_objects` as for `read_schema`. Raises GrammarError.
    """
    gaps = Gaps()
    form = _read(_format_of(json.loads(text)), 0, close_objects, gaps)
    return {"type": "structural_tag", "format": form}, gaps


def _format_of(tag: Any) -> Any:
    if "format" in tag:
        return tag["format"]
    if "structures" not in tag:
        raise GrammarError("a structural_tag has a format, or structures and triggers")
    triggers, structures = tag.get("triggers"), tag["structures"]
    if not isinstance(structures, list) or not _are_texts(triggers):
        raise GrammarError("structures and triggers of a structural_tag must be lists")
    tags = [_from_structure(one, triggers) for one in structures]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _from_structure(structure: Any, triggers: list[str]) -> Tag:
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


def _read(part: Any, depth: int, close_objects: bool, gaps: Gaps) -> Any:
    """A part of a format, with the schemas in it read."""
    if depth > MAX_DEPTH:
        raise GrammarError(f"the structural_tag is deeper than {MAX_DEPTH} levels")
    if isinstance(part, list):
        return [_read(item, depth + 1, close_objects, gaps) for item in part]
    if not isinstance(part, Mapping):
        return part
    found: Tag = {}
    for key, value in part.items():
        if key == "json_schema":
            found[key], more = read_schema(value, close_objects=close_objects)
            gaps.add(more)
            if part.get("style", "json") == "json" and part.get("max_whitespace_cnt") is None:
                found["max_whitespace_cnt"] = MAX_WHITESPACE
        elif key == "pattern" and isinstance(value, str):
            found[key] = full_match(value)
        # In any order, nobody would count keys. The schema's own is one of them.
        elif key != "any_order" and (key != "max_whitespace_cnt" or value is not None):
            found[key] = _read(value, depth + 1, close_objects, gaps)
    return found
