"""Whatever calls a model writes in a format, they are read back; however the text arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.parsers.reading import TOOLS, read
from tests.unit.parsers.writers import WRITERS, Calls
from vllm_lite.parsers.tools.spec import ToolSpec

# Formats whose strings have no escapes cannot hold their own marks: a text of pieces that no
# format uses for one, but that look like parts of them.
PIECES = [*"aé東🙂 \n\"'\\{}[](),:=-0.", "</", "null", "true", "12", "</b>", "<x>", "\\n", "```"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
ARGUMENTS = st.fixed_dictionaries(
    {"city": TEXTS},
    optional={
        "days": st.integers(-(10**6), 10**6),
        "wind": st.floats(-100, 100).map(lambda value: round(value, 3)),
        "now": st.booleans(),
        "opts": st.fixed_dictionaries(
            {"text": TEXTS, "deep": st.lists(st.integers(0, 99), min_size=1)}
        ),
        "tags": st.lists(TEXTS, min_size=1, max_size=3),
    },
)
CALLS = st.lists(
    st.one_of(st.tuples(st.just("get_weather"), ARGUMENTS), st.just(("ping", {}))),
    min_size=1,
    max_size=3,
)


def plain(calls: Calls, parser: str) -> Calls:
    """The calls with texts that every format can hold: some take layout off a value's ends."""

    def trimmed(value: Any) -> Any:
        if isinstance(value, str):
            return value if parser in ("hermes", "mistral", "pythonic") else value.strip()
        if isinstance(value, dict):
            return {key: trimmed(part) for key, part in value.items()}
        return [trimmed(part) for part in value] if isinstance(value, list) else value

    return [(name, trimmed(args)) for name, args in calls]


@pytest.mark.parametrize("parser", sorted(WRITERS))
@settings(max_examples=25, deadline=None)
@given(calls=CALLS, data=st.data())
def test_written_calls_are_read_back_from_any_pieces(
    parser: str, calls: Calls, data: st.DataObject
) -> None:
    calls = plain(calls, parser)
    text = "Yes. " + WRITERS[parser](calls)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=12)))
    message = read(text, cuts, tool_parser=parser)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert all(call.complete for call in message.tool_calls)
    assert message == read(text, tool_parser=parser)


@settings(max_examples=300, deadline=None)
@given(
    parser=st.sampled_from(sorted(WRITERS)),
    pieces=st.lists(
        st.one_of(
            TEXTS,
            st.sampled_from([WRITERS[name]([("ping", {})]) for name in sorted(WRITERS)]),
            st.sampled_from(["<think>", "</think>", "[THINK]", "<|channel|>", "<tool_call>", "{"]),
        ),
        max_size=6,
    ),
    reasoning=st.sampled_from(["qwen3", "mistral", "openai_gptoss", "kimi_k3", None]),
    data=st.data(),
)
def test_no_text_at_all_is_read_differently_in_pieces(
    parser: str, pieces: list[str], reasoning: str | None, data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=12)))
    config = {"tool_parser": parser, "reasoning_parser": reasoning}
    whole = read(text, **config)
    assert read(text, cuts, **config) == whole
    assert read(text, range(1, len(text)), **config) == whole


@pytest.mark.parametrize("parser", sorted(WRITERS))
def test_only_the_first_of_parallel_calls_is_kept_where_asked(parser: str) -> None:
    text = WRITERS[parser]([("ping", {}), ("get_weather", {"city": "Rome"})])
    message = read(text, tool_parser=parser, parallel_tool_calls=False)
    assert [call.name for call in message.tool_calls] == ["ping"]
    assert not message.content


@pytest.mark.parametrize("parser", sorted(WRITERS))
def test_arguments_of_a_call_cut_anywhere_are_the_beginning_of_the_whole_ones(parser: str) -> None:
    args = {"city": 'a "b" {c}', "days": 12, "opts": {"text": "x, y", "deep": [1, 2]}}
    text = WRITERS[parser]([("get_weather", args)])
    whole = read(text, tool_parser=parser).tool_calls[0].arguments
    for end in range(len(text)):
        calls = read(text[:end], tool_parser=parser).tool_calls
        assert len(calls) <= 1
        if calls and calls[0].complete:
            assert calls[0].arguments == whole
        elif calls:
            assert whole.startswith(calls[0].arguments), text[:end]


@pytest.mark.parametrize("parser", sorted(WRITERS))
def test_a_tool_whose_schema_says_nothing_gets_its_texts(parser: str) -> None:
    text = WRITERS[parser]([("free", {"a": "x y", "b": {"c": "d"}})])
    message = read(text, tool_parser=parser, tools=(*TOOLS, ToolSpec("free", {})))
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        ("free", {"a": "x y", "b": {"c": "d"}})
    ]
