"""The way from text to events: order, ends, ids, and time that grows with the text alone."""

from __future__ import annotations

import re
import time

import pytest

from tests.unit.parsers.reading import TOOLS, plain_id, read
from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from vllm_lite.parsers.pipeline import OutputParser, OutputParserConfig
from vllm_lite.parsers.tools.spec import NamedTool

HERMES = OutputParserConfig(
    reasoning_parser="qwen3", tool_parser="hermes", tools=TOOLS, new_id=plain_id
)


def test_certain_text_is_emitted_at_once() -> None:
    parser = OutputParser(HERMES)
    assert parser.feed("thin") == [ReasoningDelta("thin")]
    assert not parser.reasoning_ended
    assert parser.feed("k</thi") == [ReasoningDelta("k")]
    assert parser.feed("nk>Let me") == [ContentDelta("Let me")]
    assert parser.reasoning_ended
    assert parser.feed(" see.\n<tool_") == [ContentDelta(" see.\n")]
    assert parser.feed('call>\n{"name": "get_weather", "arg') == []
    assert parser.feed('uments": {"city": "Ro') == [
        ToolCallStart(0, "id-0", "get_weather"),
        ToolArgumentsDelta(0, '{"city": "Ro'),
    ]
    assert parser.feed('me"}') == [ToolArgumentsDelta(0, 'me"}'), ToolCallEnd(0)]
    assert parser.feed("}\n</tool_call>\n") == []
    assert parser.finish() == []


def test_joined_deltas_are_the_message() -> None:
    text = 'R</think>C<tool_call>{"name": "ping", "arguments": {"a": "x"}}</tool_call>D'
    parser = OutputParser(HERMES)
    events: list[Event] = []
    for char in text:
        events += parser.feed(char)
    message = collect(events + parser.finish())
    assert (message.reasoning, message.content) == ("R", "CD")
    assert [call.arguments for call in message.tool_calls] == ['{"a": "x"}']
    assert message == read(text, tool_parser="hermes", reasoning_parser="qwen3")


@pytest.mark.parametrize(
    ("parser", "shape"),
    [
        ("hermes", r"chatcmpl-tool-[0-9a-f]{16}"),
        ("kimi_k2", r"functions\.ping:7"),
        ("mistral", r"[A-Za-z0-9]{9}"),
        ("xlam", r"call_[0-9a-f]{24}"),
    ],
)
def test_ids_are_of_the_models_own_kind(parser: str, shape: str) -> None:
    text = {
        "hermes": '<tool_call>{"name": "ping", "arguments": {}}</tool_call>',
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:7"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "mistral": "[TOOL_CALLS]ping[ARGS]{}",
        "xlam": '[{"name": "ping", "arguments": {}}]',
    }[parser]
    made = OutputParser(OutputParserConfig(tool_parser=parser, tools=TOOLS))
    (call,) = collect(made.feed(text) + made.finish()).tool_calls
    assert re.fullmatch(shape, call.id)


def test_without_parsers_text_is_content() -> None:
    parser = OutputParser(OutputParserConfig())
    assert parser.reasoning_ended
    assert parser.feed("<think>a") == [ContentDelta("<think>a")]
    assert parser.feed("") == [] and parser.finish() == []


def test_calls_are_looked_for_only_where_there_are_tools_and_a_choice() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    assert read(text, tool_parser="hermes", tool_choice="none").content == text
    assert read(text, tool_parser="hermes", tools=()).content == text
    assert read(text, tool_parser="hermes", tool_choice="auto").content is None


def test_a_forced_call_needs_no_parser() -> None:
    text = ' [{"name": "ping", "parameters": {}}] '
    assert [call.name for call in read(text, tool_choice="required").tool_calls] == ["ping"]
    message = read('{"city": "Rome"', tool_choice=NamedTool("get_weather"))
    assert [(call.arguments, call.complete) for call in message.tool_calls] == [
        ('{"city": "Rome"', False)
    ]


def test_templates_switch_reasoning_off() -> None:
    config = {"reasoning_parser": "qwen3", "chat_template_kwargs": {"enable_thinking": False}}
    assert read("text", **config).content == "text"
    assert read("text", reasoning_parser="deepseek_v3").content == "text"
    # The prompt itself is the better witness.
    config = {"reasoning_parser": "deepseek_v3", "prompt_ends_in_reasoning": True}
    assert read("R</think>C", **config).reasoning == "R"


def test_arguments_that_are_no_json_end_the_call_and_the_rest_is_content() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {"a": oops}}</tool_call> bye'
    message = read(text, tool_parser="hermes")
    assert [(call.arguments, call.complete) for call in message.tool_calls] == [
        ('{"a": null}', False)
    ]
    assert message.content == "oops}} bye"


@pytest.mark.parametrize(
    "body",
    [
        "",
        '{"name": "ping", "arg',
        '{"name": "ping", "arguments": "none"}',
        '{"arguments": {}}',
        '{"name": "ping", "argents": {}}',
        "nothing",
        '{"name": "' + "x" * 300 + '", "arguments": {}}',
    ],
)
def test_malformed_call_becomes_content_without_its_marks(body: str) -> None:
    text = f"So <tool_call>{body}</tool_call>"
    for cut in range(1, len(text)):
        assert read(text, [cut], tool_parser="hermes").content == f"So {body}"


def test_later_call_cut_by_the_end_is_dropped() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    for end in range(len(text)):
        message = read(text + "\n" + text[:end], tool_parser="hermes")
        assert not message.content or message.content.strip() in "<tool_call"[: end or 1]
        assert message.tool_calls[0].arguments == "{}"


HOSTILE = {
    "prose": ("hermes", "", "word "),
    "openers": ("hermes", "", "<tool_call>"),
    "half openers": ("hermes", "", "<tool_"),
    "spaces": ("hermes", "<tool_call>", " \n"),
    "escapes": ("hermes", '<tool_call>{"name": "ping", "arguments": {"a": "', "\\n"),
    "depth": ("hermes", '<tool_call>{"name": "ping", "arguments": {"a": ', "["),
    "brackets": ("pythonic", "", "["),
    "braces": ("llama3_json", "", "{"),
    "numbers": ("pythonic", "[ping(a=", "1"),
    "values": ("qwen3_xml", "<tool_call><function=ping><parameter=a>", "</par"),
    "elements": ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="ping">',
                 "]<]minimax[>[<a>"),
    "recipients": ("muse_glimmer", "", " to=a"),
    "attributes": ("minicpm5", "<function", " a=b"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_no_text_takes_more_than_its_length_in_time(case: str) -> None:
    parser, begin, piece = HOSTILE[case]

    def seconds(count: int) -> float:
        made = OutputParser(
            OutputParserConfig(reasoning_parser="mistral", tool_parser=parser, tools=TOOLS)
        )
        start = time.process_time()
        made.feed(begin)
        for _ in range(count):
            made.feed(piece)
        made.finish()
        return time.process_time() - start

    seconds(500)
    # Four times the text: quadratic work would take sixteen times as long.
    assert min(seconds(12_000) for _ in range(2)) < 10 * max(
        min(seconds(3_000) for _ in range(2)), 0.005
    )


def test_one_large_piece_costs_as_much_as_many_small_ones() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {"a": "' + "\\n" * 100_000 + '"}}</tool_call>'
    start = time.process_time()
    message = read(text, tool_parser="hermes")
    assert len(message.tool_calls[0].arguments) == 200_000 + len('{"a": ""}')
    assert time.process_time() - start < 10
