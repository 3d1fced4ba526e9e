"""Every kind of constraint, by each engine: texts inside it pass, texts outside do not."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from tests.unit.structured_output.walks import BYTES, EOS, SPECIAL, allowed, compiled, follows, walk
from vllm_lite.structured_output.compiler import GrammarEngines
from vllm_lite.structured_output.grammar import CompiledGrammar, Refusal

EBNF = 'root ::= "(" root ")" | "x"'
LARK = 'start: "(" start ")" | "x"'
TAG = json.dumps(
    {
        "structures": [
            {"begin": "<f>", "schema": {"type": "object", "properties": {}}, "end": "</f>"}
        ],
        "triggers": ["<f>"],
    }
)
PATTERNS = ["[a-c]{2,4}-\\d+", "(yes|no|maybe)", "^\\w+@\\w+\\.com$", "[^x]{3}", "a(b|c)*d?"]
CHOICES = ["yes", "no", 'say "hi"', "back\\slash", "é😀", "two\nlines"]


def grammar_of(engines: GrammarEngines, **constraint: Any) -> CompiledGrammar:
    found = compiled(engines, **constraint)
    assert not isinstance(found, Refusal), found.message
    return found


def refusal_of(engines: GrammarEngines, **constraint: Any) -> Refusal:
    found = compiled(engines, **constraint)
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_of_an_expression_match_it(pattern: str, one_engine: GrammarEngines) -> None:
    grammar, rng = grammar_of(one_engine, regex=pattern), random.Random(1)
    texts = [text for text in (walk(grammar, rng, 60) for _ in range(20)) if text is not None]
    assert texts
    for text in texts:
        assert re.fullmatch(pattern, text.decode(errors="replace"), re.DOTALL | re.ASCII)


def test_a_choice_is_one_of_them(one_engine: GrammarEngines) -> None:
    grammar = grammar_of(one_engine, choice=CHOICES)
    assert all(follows(grammar, choice.encode()) for choice in CHOICES)
    assert not any(follows(grammar, text) for text in (b"", b"ye", b"yesno", b"maybe"))
    rng = random.Random(2)
    assert {walk(grammar, rng) for _ in range(40)} <= {choice.encode() for choice in CHOICES}


@pytest.mark.parametrize("grammar", [EBNF, LARK])
def test_both_forms_of_grammars_nest(grammar: str, engines: GrammarEngines) -> None:
    found = grammar_of(engines, grammar=grammar)
    assert follows(found, b"x") and follows(found, b"(((x)))")
    assert not follows(found, b"((x)") and not follows(found, b"x)")


def test_guidance_reads_both_forms_too() -> None:
    engines = GrammarEngines(BYTES, "guidance")
    for grammar in (EBNF, LARK):
        assert follows(grammar_of(engines, grammar=grammar), b"((x))")


def test_any_object_is_an_object(one_engine: GrammarEngines) -> None:
    grammar = grammar_of(one_engine, json_object=True)
    assert follows(grammar, b'{"a": [1, {"b": null}]}') and follows(grammar, b"{}")
    assert not follows(grammar, b"[1]") and not follows(grammar, b"3")


def test_a_structural_tag_leaves_the_text_around_it_free(one_engine: GrammarEngines) -> None:
    grammar = grammar_of(one_engine, structural_tag=TAG)
    assert follows(grammar, b"free text") and follows(grammar, b"call: <f>{}</f> done")
    assert not follows(grammar, b"<f>nonsense</f>")


def test_lengths_hold_within_a_structural_tag(engines: GrammarEngines) -> None:
    schema = {"type": "string", "minLength": 2, "maxLength": 3}
    tag = {"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f>"]}
    grammar = grammar_of(engines, structural_tag=json.dumps(tag))
    assert follows(grammar, '<f>"éb"</f>'.encode())
    for text in (b'<f>"a"</f>', b'<f>"abcd"</f>', b'<f>"a\nb"</f>'):
        assert not follows(grammar, text)


def test_the_newer_structural_tags_are_xgrammars(engines: GrammarEngines) -> None:
    tag = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
    }
    assert follows(grammar_of(engines, structural_tag=json.dumps(tag)), b"<t>abc</t>")


@pytest.mark.parametrize(
    ("constraint", "word"),
    [
        ({"regex": "("}, "arenthesis"),
        ({"regex": "a(?=b)"}, "looks ahead"),
        ({"regex": "[^)](?<!b)"}, "looks ahead or behind"),
        ({"grammar": 'root ::= "a" missing'}, "missing"),
        ({"grammar": "root ::= root"}, "no text satisfies"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "neither form"}, "Expected"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"structural_tag": TAG.replace("object", "nonsense")}, "nonsense"),
        ({"structural_tag": TAG.replace("properties", "not")}, "not"),
        ({"structural_tag": '{"structures": 3, "triggers": []}'}, "structural_tag"),
        ({"json": {"type": "string"}, "whitespace_pattern": "("}, "whitespace"),
    ],
    ids=str,
)
def test_a_bad_constraint_is_refused_by_its_field(
    constraint: dict[str, Any], word: str, engines: GrammarEngines
) -> None:
    refusal = refusal_of(engines, **constraint)
    assert word in refusal.message
    assert refusal.param == f"structured_outputs.{next(iter(constraint))}"


def test_brackets_in_a_class_are_no_look_around(engines: GrammarEngines) -> None:
    assert follows(grammar_of(engines, regex=r"[(?=x)]\(\?=y"), b"((?=y")


def test_whitespace_is_free_but_bounded(one_engine: GrammarEngines) -> None:
    grammar = grammar_of(one_engine, json={"type": "object", "properties": {"a": {"type": "null"}}})
    assert follows(grammar, b'{"a":null}')
    assert follows(grammar, b'{\n        "a": null\n}')
    assert not follows(grammar, b'{"a":' + b" " * 100 + b"null}")


def test_without_free_whitespace_there_is_one_way_to_write_it(one_engine: GrammarEngines) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    grammar = grammar_of(one_engine, json=schema, disable_any_whitespace=True)
    assert follows(grammar, b'{"a": null, "b": null}')
    assert not follows(grammar, b'{"a":null,"b":null}')


def test_whitespace_of_ones_own(engines: GrammarEngines) -> None:
    grammar = grammar_of(engines, json={"type": "array"}, whitespace_pattern="_?")
    assert follows(grammar, b"[1,_2]") and not follows(grammar, b"[1, 2]")


def test_closed_objects_take_no_other_keys(one_engine: GrammarEngines) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    grammar = grammar_of(one_engine, json=schema, disable_additional_properties=True)
    assert follows(grammar, b'{"a":null}') and not follows(grammar, b'{"b":1}')


def test_special_tokens_are_no_text(one_engine: GrammarEngines) -> None:
    for constraint in ({"json": {"type": "string"}}, {"regex": ".*"}, {"json_object": True}):
        matcher = grammar_of(one_engine, **constraint).matcher()
        masks = np.zeros((1, BYTES.mask_words), np.int32)
        for byte in b'"' if "json" in constraint else b"{" if "json_object" in constraint else b"a":
            assert matcher.accept(byte)
        matcher.fill(masks, 0)
        assert SPECIAL not in allowed(masks[0])


def test_a_matcher_can_go_on_inside_a_token(one_engine: GrammarEngines) -> None:
    matcher = grammar_of(one_engine, json_object=True).matcher()
    assert matcher.accept_bytes(b'{"a"')
    assert matcher.accept(ord(":"))
    assert matcher.accept_bytes(b"1}")
    assert matcher.accept(EOS) and matcher.is_terminated


def test_matchers_of_one_grammar_do_not_meet(one_engine: GrammarEngines) -> None:
    grammar = grammar_of(one_engine, regex="ab|cd")
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(ord("a"))
    assert second.accept(ord("c")) and first.accept(ord("b")) and second.accept(ord("d"))
