"""Answers of calls and prose, written in a parser's format and then damaged, from a seed.

Every value and every stretch of prose holds a word (`q7z`) that stands nowhere else, so that what
a parser loses can be named.
"""

# The models' own marks are full of characters that look like others.
# ruff: noqa: RUF001

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from typing import Any

from tests.unit.parsers.writers import WRITERS, Calls

WORD = re.compile(r"q\d+z")
# Marks of formats: control tokens, tags in a namespace, and plain tags.
_MARK = re.compile(r"\]<\]minimax\[>\[|\[TOOL_CALLS\]|\[ARGS\]|</?(?:｜DSML｜ )?[^\s<>]+[ =>]")
_CONTROL = re.compile(r"[|｜\[\]]|[a-z](?::|_call|_key|_value)|escape>")
_SYNTAX = "\"'{}[]()<>,:=/|\n"


class Words:
    """Words that no text has twice."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        return f"q{self._count}z"


def some_calls(choose: random.Random, word: Words) -> Calls:
    """One to three calls, the first with arguments."""
    calls: Calls = []
    for _ in range(choose.randint(1, 3)):
        if calls and choose.random() < 0.3:
            calls.append(("ping", {}))
            continue
        args: dict[str, Any] = {"city": choose.choice(("{}", "{} e", "a {}, b")).format(word())}
        if choose.random() < 0.5:
            args["days"] = choose.randint(-9, 99)
        if choose.random() < 0.4:
            args["opts"] = {"text": word(), "deep": [1, 2]}
        if choose.random() < 0.4:
            args["tags"] = [word(), word()]
        calls.append(("get_weather", args))
    return calls


def answer(parser: str, choose: random.Random, word: Words) -> str:
    """Prose and calls as the model of `parser` writes them."""
    before = f"Say {word()}. " if choose.random() < 0.5 else ""
    after = f"\nAnd {word()}." if choose.random() < 0.3 else ""
    return before + WRITERS[parser](some_calls(choose, word)) + after


def damaged(text: str, choose: random.Random, marks: Iterable[str]) -> str:
    """`text` with one to three faults of the kinds that models make."""
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        text = _damaged_once(text, choose, sorted(marks))
    return text


def _damaged_once(text: str, choose: random.Random, marks: list[str]) -> str:
    if not text:
        return text
    kind = choose.choice(("drop", "double", "truncate", "quotes", "drop", "double"))
    if kind == "truncate":
        return text[: choose.randrange(len(text))]
    if kind == "quotes":
        at = [i for i, char in enumerate(text) if char in "\"'"]
        if not at:
            return text
        begin = choose.choice(at)
        return text[:begin] + choose.choice("\"'”`".replace(text[begin], "")) + text[begin + 1 :]
    begin, end = _span(text, choose, marks)
    if kind == "drop":
        return text[:begin] + text[end:]
    return text[:end] + text[begin:]


def _span(text: str, choose: random.Random, marks: list[str]) -> tuple[int, int]:
    """A mark, a character of syntax, or a few characters anywhere."""
    of_marks = [found.span() for mark in marks for found in re.finditer(re.escape(mark), text)]
    of_syntax = [(i, i + 1) for i, char in enumerate(text) if char in _SYNTAX]
    begin = choose.randrange(len(text))
    anywhere = [(begin, min(len(text), begin + choose.randint(1, 12)))]
    spans = choose.choice([of_marks or anywhere, of_marks or anywhere, of_syntax, anywhere])
    return choose.choice(spans or anywhere)


def marks_of(parser: str) -> frozenset[str]:
    """The marks that the format of a tool parser puts around names and values."""
    text = WRITERS[parser]([("get_weather", {"city": "x", "tags": ["x"]}), ("ping", {})])
    found = (mark.strip() for mark in _MARK.findall(text))
    return frozenset(mark for mark in found if not re.search(r"city|tags|weather|ping|item", mark))


def is_control(mark: str) -> bool:
    """Whether no prose could hold `mark`."""
    return bool(_CONTROL.search(mark))


def read_strictly(text: str) -> Any:
    """The value of JSON text in which no object has a key twice; raises ValueError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError(f"a key stands twice in {text}")
        return found

    return json.loads(text, object_pairs_hook=unique)
