"""Names, plugins, and what a tokenizer adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.parsers.reading import read
from vllm_lite.errors import UsageError
from vllm_lite.parsers import registry
from vllm_lite.parsers.reasoning_formats import REASONING_FORMATS
from vllm_lite.parsers.tools.formats import TOOL_FORMATS

TOOL_NAMES = [
    "apertus",
    "cohere_command3",
    "cohere_command4",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "dots",
    "ernie45",
    "functiongemma",
    "gemma4",
    "gigachat3",
    "glm45",
    "glm47",
    "granite",
    "granite-20b-fc",
    "granite4",
    "hermes",
    "hf",
    "hunyuan_a13b",
    "hy_v3",
    "hy_v4",
    "inkling",
    "internlm",
    "jamba",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "lfm2",
    "ling3",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "longcat",
    "mimo",
    "minicpm5",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "muse_glimmer",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "plamo3",
    "poolside_v1",
    "pythonic",
    "qwen3_coder",
    "qwen3_json",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "step3p5",
    "xlam",
]
REASONING_NAMES = [
    "cohere_command3",
    "cohere_command4",
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v4",
    "deepseek_v41",
    "ernie45",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite_thinking_parser",
    "holo2",
    "hunyuan_a13b",
    "hy_v3",
    "hy_v4",
    "hf",
    "inkling",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "ling3",
    "mimo",
    "minicpmv",
    "minimax_m2",
    "minimax_m2_append_think",
    "minimax_m3",
    "mistral",
    "muse_glimmer",
    "nemotron_v3",
    "olmo3",
    "openai_gptoss",
    "plamo3",
    "poolside_v1",
    "qwen3",
    "seed_oss",
    "step3",
    "step3p5",
]
QWEN_TEMPLATE = {
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    }
}
XML_CALLS = {
    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"
    },
    "transform": {
        "type": "function",
        "function": {"name": "{name}", "arguments": "{content}"},
    },
}
GEMMA_CALLS = {
    "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
    "close": "<tool_call|>",
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
    "transform": {
        "type": "function",
        "function": {"name": "{name}", "arguments": "{content}"},
    },
}
KEYED_CALLS = {
    "open": "<call>",
    "close": "</call>",
    "content": "json",
    "transform": {
        "type": "function",
        "function": {"name": "{content.tool}", "arguments": "{content.input}"},
    },
}


@pytest.fixture(autouse=True)
def formats_as_they_were() -> Iterator[None]:
    tools, reasoning = dict(TOOL_FORMATS), dict(REASONING_FORMATS)
    yield
    for formats, before in ((TOOL_FORMATS, tools), (REASONING_FORMATS, reasoning)):
        formats.clear()
        formats.update(before)


def test_every_name_of_vllm_is_known() -> None:
    assert set(registry.tool_parser_names()) == set(TOOL_NAMES)
    assert set(registry.reasoning_parser_names()) == set(REASONING_NAMES)
    assert len(TOOL_NAMES) == 54 and len(REASONING_NAMES) == 38


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_a_prompt_says_whether_it_opened_reasoning(name: str) -> None:
    if name == "hf":
        return
    markers = registry.reasoning_markers(name)
    if markers is None:
        assert name == "minimax_m2_append_think"
        return
    assert registry.prompt_ends_in_reasoning(name, f"user: hi {markers.start}\n") is True
    closed = f"{markers.start}\n\n{markers.end}\n\n"
    assert registry.prompt_ends_in_reasoning(name, closed) is False
    assert registry.prompt_ends_in_reasoning(name, f"{closed}assistant:") is None


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"--tool-call-parser nope is not known.*hermes"):
        registry.bind_tokenizer("nope", None)
    with pytest.raises(UsageError, match=r"--reasoning-parser nope is not known.*qwen3"):
        registry.bind_tokenizer(None, "nope")


def test_text_formats_do_not_need_special_tokens() -> None:
    assert not registry.needs_special_tokens("pythonic", "granite")
    assert not registry.needs_special_tokens(None, None)
    assert registry.needs_special_tokens("mistral", "granite")


def test_a_plugin_brings_parsers(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from vllm_lite.parsers.plugin import (\n"
        "    JsonTools, TaggedReasoning, register_reasoning_parser, register_tool_parser)\n"
        "register_tool_parser('mine', JsonTools(openers=('<<call>>',), closers=('<<end>>',)))\n"
        "register_reasoning_parser('mine', TaggedReasoning(starts=('((',), ends=('))',)))\n"
    )
    registry.load_plugin(str(plugin))
    registry.load_plugin(str(plugin))  # both flags may name one file
    assert "mine" in registry.TOOL_FORMATS and "mine" in registry.REASONING_FORMATS
    text = '((R))C<<call>>{"name": "f", "arguments": {"a": 1}}<<end>>'
    message = read(text, tool_parser="mine", reasoning_parser="mine")
    assert (message.reasoning, message.content) == ("R", "C")
    assert [call.arguments for call in message.tool_calls] == ['{"a": 1}']


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no')", "failed with ValueError: no"),
        ("import nothing_of_the_kind", "failed with ModuleNotFoundError"),
        (
            "from vllm_lite.parsers.plugin import *\n"
            "register_tool_parser('hermes', JsonTools(openers=('x',)))",
            "tool parser hermes exists already",
        ),
    ],
)
def test_a_plugin_that_fails_is_named(tmp_path: Path, text: str, said: str) -> None:
    plugin = tmp_path / "bad.py"
    plugin.write_text(text)
    with pytest.raises(UsageError, match=said):
        registry.load_plugin(str(plugin))


def test_a_plugin_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        registry.load_plugin(str(tmp_path / "none.py"))


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (
            QWEN_TEMPLATE["fields"]["tool_calls"],
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        ),
        (
            XML_CALLS,
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
        (GEMMA_CALLS, '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'),
        (KEYED_CALLS, '<call>{"tool": "get_weather", "input": {"city": "Rome"}}</call>'),
    ],
    ids=["json", "tags", "name and json", "keys"],
)
def test_hf_parser_reads_the_tokenizer_s_format(calls: object, text: str) -> None:
    template = {"fields": {**QWEN_TEMPLATE["fields"], "tool_calls": calls}}
    registry.bind_tokenizer("hf", "hf", response_template=template)
    whole = f"<think>R</think>C {text}"
    for cut in range(1, len(whole)):
        message = read(whole, [cut], tool_parser="hf", reasoning_parser="hf")
        assert (message.reasoning, message.content) == ("R", "C ")
        assert [(call.name, call.arguments) for call in message.tool_calls] == [
            ("get_weather", '{"city": "Rome"}')
        ]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "the tokenizer has no response_template"),
        ({"fields": {}}, "has no tool_calls field"),
        ({"fields": {"tool_calls": {"open_pattern": "(a|b)+", "close": "c"}}}, "tool_calls field"),
        ({"fields": {"tool_calls": {"open": "a", "close": "c"}}}, "more than literal marks"),
        ({"fields": {"tool_calls": {**KEYED_CALLS, "transform": "{content}"}}}, "more than"),
    ],
)
def test_hf_is_refused_at_start_where_it_cannot_be_read(template: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        registry.bind_tokenizer("hf", None, response_template=template)
    with pytest.raises(UsageError, match="hf"):
        registry.bind_tokenizer(None, "hf", response_template={"fields": {"content": {}}})


def test_tags_of_a_checkpoint_may_end_in_a_suffix() -> None:
    tokens = ["<a>", "<think:6124c78e>", "</think:6124c78e>"]
    registry.bind_tokenizer("hy_v4", "hy_v4", tokens=tokens)
    text = (
        "<think:6124c78e>R</think:6124c78e><tool_calls:6124c78e><tool_call:6124c78e>ping"
        "</tool_call:6124c78e></tool_calls:6124c78e>"
    )
    message = read(text, tool_parser="hy_v4", reasoning_parser="hy_v4")
    assert message.reasoning == "R" and message.content is None
    assert [call.name for call in message.tool_calls] == ["ping"]
