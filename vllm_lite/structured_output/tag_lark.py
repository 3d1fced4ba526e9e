"""Structural tags as a Lark grammar of llguidance, for schemas that xgrammar does not enforce.

Takes the newer form, its schemas read. What it writes allows no text that the
tag does not; a part that it cannot write is a TagError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_lite.structured_output.grammar import MAX_WHITESPACE, GrammarError
from vllm_lite.structured_output.patterns import full_match
from vllm_lite.structured_output.schema import Gaps, read_schema

MAX_DEPTH = 32
Tag = dict[str, Any]
Part = Mapping[str, Any]
MAX_REPEATS = 1024
_CALLS = "at_least_one stop_after_first tags"


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
        # Free order would not limit the number of keys. It includes the schema's own order.
        elif key != "any_order" and (key != "max_whitespace_cnt" or value is not None):
            found[key] = _read(value, depth + 1, close_objects, gaps)
    return found


class TagError(GrammarError):
    """A part of a tag that only xgrammar knows."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, which only the backend xgrammar can follow")


class TagGrammar:
    """Writes one tag; `json_rule` writes a schema with at most so much white space in a place."""

    def __init__(
        self, json_rule: Callable[[Any, int], str], regex_text: Callable[[str], str]
    ) -> None:
        self._json_rule = json_rule
        self._regex_text = regex_text
        self._rules: list[str] = []

    def write(self, tag: Part) -> str:
        """The grammar, its first rule `start`."""
        start = self._part(tag["format"], None)
        return "\n".join([f"start: {start}", *self._rules])

    def _part(self, part: Any, end: str | None) -> str:
        """An expression for a part and the text `end` behind it; None where all ends there."""
        kind = part.get("type") if isinstance(part, Mapping) else None
        if str(kind) not in _KINDS:
            raise TagError(f"the structural_tag has a part of type {kind!r:.40}")
        writer, fields = _KINDS[str(kind)]
        known = {"type", *fields.split()}
        unsaid = sorted(key for key, value in part.items() if key not in known and value)
        if unsaid:
            raise TagError(f"the structural_tag's {kind} says {', '.join(unsaid)}")
        return writer(self, part, end)

    def _const(self, part: Part, end: str | None) -> str:
        return _literal(f"{part['value']}{end or ''}")

    def _json(self, part: Part, end: str | None) -> str:
        return self._then(self._json_rule(part["json_schema"], part["max_whitespace_cnt"]), end)

    def _regex(self, part: Part, end: str | None) -> str:
        return self._then(f"/{self._regex_text(part['pattern'])}/", end)

    def _any_text(self, part: Part, end: str | None) -> str:
        most = part.get("max_chars")
        text = "(?s:.*)" if most is None else f"(?s:.{{0,{int(most)}}})"
        return self._free_text(text, part.get("excludes", []), end)

    def _sequence(self, part: Part, end: str | None) -> str:
        elements = part["elements"]
        if not elements:
            return _literal(end or "")
        # Free text ends where the next part begins.
        written, follows = [], end
        for element in reversed(elements):
            if element.get("type") == "const_string":
                follows = f"{element['value']}{follows or ''}"
                continue
            written.append(self._part(element, follows))
            follows = ""
        if follows:
            written.append(_literal(follows))
        return " ".join(reversed(written)) or '""'

    def _or(self, part: Part, end: str | None) -> str:
        return f"({' | '.join(self._part(element, end) for element in part['elements'])})"

    def _repeated(self, part: Part, end: str | None) -> str:
        times = {"optional": "?", "plus": "+", "star": "*"}.get(part["type"])
        if times is None:
            least, most = part["min"], part["max"]
            if not 0 <= least <= most <= MAX_REPEATS:
                raise TagError(
                    f"the structural_tag repeats a part outside 0 to {MAX_REPEATS} times"
                )
            times = f"{{{least},{most}}}"
        return self._then(f"({self._part(part['content'], '')}){times}", end)

    def _tag(self, part: Part, end: str | None, begun: str = "") -> str:
        """A tag whose beginning has been written up to and with `begun`."""
        begin, ends = part["begin"], part["end"]
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(begin, str) or not _are_texts(ends):
            raise TagError("the structural_tag's tag begins or ends with a token")
        bodies = [self._part(part["content"], f"{one}{end or ''}") for one in ends]
        return f"{_literal(begin.removeprefix(begun))} ({' | '.join(bodies)})"

    def _separated(self, part: Part, end: str | None) -> str:
        tags = self._rule("(" + " | ".join(self._part(tag, "") for tag in part["tags"]) + ")")
        written = tags
        if not part.get("stop_after_first"):
            written = f"{tags} ({_literal(part['separator'])} {tags})*"
        return self._then(written if part.get("at_least_one") else f"({written})?", end)

    def _triggered(self, part: Part, end: str | None) -> str:
        triggers, tags, excluded = part["triggers"], part["tags"], part.get("excludes", [])
        if end:
            raise TagError("the structural_tag has text behind triggered_tags")
        free, bare = [], []
        for trigger in triggers:
            begun = [tag for tag in tags if str(tag["begin"]).startswith(trigger)]
            if not begun:
                continue
            bodies = self._rule(
                "(" + " | ".join(self._tag(tag, "", trigger) for tag in begun) + ")"
            )
            free.append(f"{self._free_text('(?s:.*)', excluded, trigger)} {bodies}")
            bare.append(f"{_literal(trigger)} {bodies}")
        text = self._free_text("(?s:.*)", [*excluded, *triggers], None)
        any_tag, first = f"({' | '.join(free)})", f"({' | '.join(bare)})"
        if part.get("at_least_one"):
            return first if part.get("stop_after_first") else f"{first} {any_tag}* {text}"
        # Nothing follows the first tag.
        return f"({any_tag} | {text})" if part.get("stop_after_first") else f"{any_tag}* {text}"

    def _free_text(self, text: str, excluded: Sequence[str], end: str | None) -> str:
        """Text without any of `excluded`, up to the first `end`."""
        if end == "":
            raise TagError("the structural_tag has free text with nothing behind that ends it")
        if not _are_texts(excluded):
            raise TagError("excludes of a structural_tag must be texts")
        name = f"TEXT_{len(self._rules)}"
        without = "|".join(re.escape(one).replace("/", r"\/") for one in excluded if one)
        but = f" & ~/(?s:.*)({without})(?s:.*)/" if without else ""
        self._rules.append(f"{name}: /{text}/{but}")
        if end is None:
            return name
        lazy = f"text_{len(self._rules)}"
        self._rules.append(f"{lazy}[lazy]: {name} {_literal(end)}")
        return lazy

    def _rule(self, expression: str) -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    @staticmethod
    def _then(expression: str, end: str | None) -> str:
        return f"{expression} {_literal(end)}" if end else expression


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


# Kind of part -> what writes it, and the fields that it may have beside its type.
_KINDS: dict[str, tuple[Callable[[TagGrammar, Part, str | None], str], str]] = {
    "const_string": (TagGrammar._const, "value"),
    "json_schema": (TagGrammar._json, "json_schema max_whitespace_cnt"),
    "regex": (TagGrammar._regex, "pattern"),
    "any_text": (TagGrammar._any_text, "excludes max_chars"),
    "sequence": (TagGrammar._sequence, "elements"),
    "or": (TagGrammar._or, "elements"),
    "optional": (TagGrammar._repeated, "content"),
    "plus": (TagGrammar._repeated, "content"),
    "star": (TagGrammar._repeated, "content"),
    "repeat": (TagGrammar._repeated, "content max min"),
    "tag": (TagGrammar._tag, "begin content end"),
    "tags_with_separator": (TagGrammar._separated, f"{_CALLS} separator"),
    "triggered_tags": (TagGrammar._triggered, f"{_CALLS} excludes triggers"),
}
