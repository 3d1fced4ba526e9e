"""Results of each parser for texts that models write, whole and split in two everywhere.

`corpus.jsonl` holds a case a line: the text, how it is read, and the message it is.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.parsers.reading import read
from vllm_lite.parsers import registry
from vllm_lite.parsers.events import ParsedMessage, ParsedToolCall

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("corpus.jsonl").read_text("utf-8").splitlines()
]
RESULT = ("case", "text", "reasoning", "content", "calls")


def name_of(case: dict[str, Any]) -> str:
    names = [case[key] for key in ("reasoning_parser", "tool_parser") if key in case]
    return "-".join([*names, case["case"]])


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in case.items() if key not in RESULT}


def expected_of(case: dict[str, Any]) -> ParsedMessage:
    calls = [
        ParsedToolCall(call.id, name, arguments, (whole or [True])[0])
        for (name, arguments, *whole), call in zip(
            case.get("calls", []), read(case["text"], **config_of(case)).tool_calls, strict=True
        )
    ]
    return ParsedMessage(case.get("reasoning"), case.get("content"), calls)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_text_is_read_as_written_down(case: dict[str, Any]) -> None:
    assert read(case["text"], **config_of(case)) == expected_of(case)


def check_cuts(case: dict[str, Any], first: int) -> None:
    """From `first`, every second place of a text may be where it is cut."""
    text, config = case["text"], config_of(case)
    whole = read(text, **config)
    for cut in range(first, len(text), 2):
        assert read(text, [cut], **config) == whole, f"cut at {cut}: {text[:cut]!r}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_no_other_cut_changes_the_message(case: dict[str, Any]) -> None:
    check_cuts(case, 2 - len(case["text"]) % 2)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_no_cut_changes_the_message(case: dict[str, Any]) -> None:
    text, config = case["text"], config_of(case)
    whole = read(text, **config)
    check_cuts(case, 1 + len(text) % 2)
    choose = random.Random(text)
    for most in (2, 5, 20):
        cuts, at = [], 0
        while (at := at + choose.randint(1, most)) < len(text):
            cuts.append(at)
        assert read(text, cuts, **config) == whole, cuts
    assert read(text, range(1, len(text)), **config) == whole


def test_every_parser_has_cases() -> None:
    tools = {case.get("tool_parser") for case in CASES}
    reasoning = {case.get("reasoning_parser") for case in CASES}
    assert tools >= set(registry.tool_parser_names()) - {"hf"}
    assert reasoning >= set(registry.reasoning_parser_names()) - {"hf"}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_complete_call_has_an_object_for_arguments(case: dict[str, Any]) -> None:
    for call in read(case["text"], **config_of(case)).tool_calls:
        if call.complete:
            assert isinstance(json.loads(call.arguments), dict)
