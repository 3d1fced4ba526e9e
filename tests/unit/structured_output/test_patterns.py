"""An expression means what ECMAScript says, wherever it stands, or is refused by what it has."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from tests.unit.structured_output.walks import compiled, walk
from vllm_lite.structured_output.compiler import GrammarEngines
from vllm_lite.structured_output.grammar import Refusal

# As Python's re reads them too, but for \c, \p and \u{.
MEANT = [
    *("a|b", "^a$", "^a|b$", "(^a|b$)", "^(a|b)$", "(?:a|^b)c", "c(a$|b)", "a|$", "^", "$", "^$"),
    *("[a[:b]c", "[a&&b]", "[a-z--c]", "[[]", "[^[a]", r"[\b]", r"[\w-]+", r"[^\d]", r"[\]\^]"),
    *("(?:a)b", "a{2}", "a{2,}?", "a??", "(|a)", "a/b", r"\/a", r"\-", r"[\s\S]", r"\\"),
    *(r"\x41\u0042", r"\v\f\t", "é+", "😀", r"\.\*", r"\W\D", "[^^]", "a[*+?{}]", "[$^]"),
]
# What is named in the refusal.
FOREIGN = {
    **{text: text[:2] for text in (r"\Aa", r"\Qa\E", r"\R", r"\h", r"\N", r"\X", r"\e", r"\8")},
    r"a\Z": r"\Z",
    r"a\z": r"\z",
    r"a\Gb": r"\G",
    r"a\Kb": r"\K",
    r"\ba": r"\b",
    r"a\B": r"\B",
    "[[:alpha:]]": "[[:alpha:]]",
    "[a[:^digit:]]": "[[:^digit:]]",
    "[]a]": "[]",
    "[^]a]": "[^]",
    "$a": "$ before",
    "a^b": "^ behind",
    "x^": "^ behind",
    "(a$)b": "$ before",
    "a(^b)": "^ beh",
    "(^)?a": "repeated group",
    "(a$)*": "repeated group",
    "$(a)": "$ before",
    "a$[b]": "$ before",
    "a*+": "*+",
    "a{2}+": "{2}+",
    "a**": "**",
    "x{2}{3}": "{2}{3}",
    "a+??": "+??",
    "\\": "escape",
    "(?>a)": "(?>",
    "(?i)a": "(?i",
    "(?#c)a": "(?#",
    "(?|a)": "(?|",
    "(?1)": "(?1",
    "(?<n>a)\\k<n>": "\\k",
    r"(a)\1": r"\1",
    "a(?=b)": "looks",
    "(?<!a)b": "looks",
}


@pytest.mark.filterwarnings("ignore:Possible")
@pytest.mark.parametrize("pattern", MEANT)
def test_texts_of_a_whole_expression_match(pattern: str, engines: GrammarEngines) -> None:
    grammar = compiled(engines, regex=pattern)
    assert not isinstance(grammar, Refusal), grammar.message
    rng = random.Random(pattern)
    texts = [text for text in (walk(grammar, rng, 60) for _ in range(10)) if text is not None]
    assert texts
    for text in texts:
        assert re.fullmatch(pattern, text.decode(), re.DOTALL | re.ASCII), text


@pytest.mark.filterwarnings("ignore:Possible")
@pytest.mark.parametrize("pattern", [one for one in MEANT if one not in (r"\v\f\t", r"[\b]")])
def test_strings_with_a_pattern_match(pattern: str, engines: GrammarEngines) -> None:
    grammar = compiled(engines, json={"type": "string", "pattern": pattern, "maxLength": 12})
    assert not isinstance(grammar, Refusal), grammar.message
    rng = random.Random(pattern)
    texts = [text for text in (walk(grammar, rng, 90) for _ in range(10)) if text is not None]
    assert texts
    for text in texts:
        assert re.search(pattern, json.loads(text), re.DOTALL | re.ASCII), text


def places(pattern: str) -> list[dict[str, Any]]:
    """The constraints in which an expression can stand."""
    schema = {"type": "string", "pattern": pattern}
    keys = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    forms = [{"type": "regex", "pattern": pattern}, {"type": "json_schema", "json_schema": schema}]
    old = {"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f>"]}
    tags = [old, *({"type": "structural_tag", "format": form} for form in forms)]
    constraints: list[dict[str, Any]] = [{"regex": pattern}, {"json": schema}, {"json": keys}]
    return constraints + [{"structural_tag": json.dumps(tag)} for tag in tags]


@pytest.mark.parametrize("pattern", FOREIGN)
def test_another_dialect_is_refused_by_name_everywhere(
    pattern: str, engines: GrammarEngines
) -> None:
    for constraint in places(pattern):
        refusal = compiled(engines, **constraint)
        assert isinstance(refusal, Refusal), constraint
        assert FOREIGN[pattern] in refusal.message.replace("\\\\", "\\"), refusal.message
        assert refusal.param == f"structured_outputs.{next(iter(constraint))}"
