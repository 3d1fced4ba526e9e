"""Rendering chats: what templates are given, what they may do, what a client is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_lite.errors import RequestError, UsageError
from vllm_lite.tokenizer.chat_template import load_chat_template, render_chat
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from vllm_lite.tokenizer.parts import TokenizerParts
from vllm_lite.tokenizer.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]}]
STRINGS = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
LOOPS = (
    "{% for m in messages %}{% for c in m['content'] %}({{ c['text'] }}){% endfor %}{% endfor %}"
)
ALIASED = (
    "{% for m in messages %}{% set c = m.content %}"
    "{% for part in c | list %}({{ part.text }}){% endfor %}{% endfor %}"
)


def render(template: str, messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    return render_chat(BARE, messages, chat_template=template, **options)


def bare(**templates: str) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    return Tokenizer(TokenizerParts(backend, {"bos_token": "<s>"}, templates))


BARE = bare()


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (STRINGS, HELLO, "[Hello]"),
        (STRINGS, PARTS, "[a\nb]"),
        (LOOPS, HELLO, "(Hello)"),
        (LOOPS, PARTS, "(a)(b)"),
        (ALIASED, PARTS, "(a)(b)"),
        (STRINGS, [{"role": "assistant", "content": None}], "[]"),
        (STRINGS, [{"role": "user"}], "[]"),
        (STRINGS, [{"role": "user", "content": []}], "[]"),
    ],
)
def test_content_comes_as_the_template_wants_it(
    template: str, messages: list[dict[str, Any]], expected: str
) -> None:
    assert render(template, messages) == expected


def test_the_shape_of_content_can_be_forced() -> None:
    kind = "{{ messages[0].content is string }}"
    assert render(kind) == render(kind, content_format="string") == "True"
    assert render(kind, content_format="openai") == "False"


def test_arguments_of_calls_come_as_objects() -> None:
    template = "{% for c in messages[0].tool_calls %}{{ c.function.arguments['x'] }}{% endfor %}"
    call = {"function": {"name": "f", "arguments": '{"x": 3}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert render(template, [message]) == "3"
    assert call["function"]["arguments"] == '{"x": 3}'  # the caller's message is untouched
    present = "{{ 'tool_calls' in messages[0] }}"
    assert render(present, [message]) == "True"
    assert render(present, [{**message, "tool_calls": []}]) == "False"


@pytest.mark.parametrize(
    "arguments",
    ["", "{x", '{"x": 3', "[1]", "3", "null", "[" * 100_000, "9" * 5000, None, [1], 5, {}],
)
def test_arguments_that_are_no_object_come_as_an_empty_one(arguments: Any) -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    for function in ({"name": "f", "arguments": arguments}, {"name": "f"}):
        message = {"role": "assistant", "tool_calls": [{"function": function}]}
        assert render(template, [message]) == "{}"


def test_half_a_surrogate_pair_in_arguments_is_no_text() -> None:
    function = {"name": "f", "arguments": '{"\\ud800": "a\\udfff", "b": "\\ud83d\\ude00"}'}
    message = {"role": "assistant", "tool_calls": [{"function": function}]}
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(template, [message]) == '{"\ufffd": "a\ufffd", "b": "\U0001f600"}'


def test_tool_results_come_as_text() -> None:
    template = "{% for c in messages[0].content %}{% endfor %}{{ messages[0].content }}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content in (parts, "a\nb"):
        assert render(template, [{"role": "tool", "content": content}]) == "a\nb"
    assert render(template, [{"role": "user", "content": "a"}]).startswith("[")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_every_name_that_templates_use(name: str) -> None:
    template = "{% set m = messages[0] %}{{ m.reasoning }}{{ m.reasoning_content }}{{ m.thinking }}"
    assert render(template, [{"role": "assistant", "content": "x", name: "r"}]) == "rrr"


def test_kwargs_reach_the_template_but_not_the_renderer() -> None:
    template = "{{ bos_token }}{{ enable_thinking }}{{ messages | length }}"
    assert render(template, chat_template_kwargs={"enable_thinking": False}) == "<s>False1"
    for name in ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize"):
        with pytest.raises(RequestError, match=name) as caught:
            render(template, chat_template_kwargs={name: "x"})
        assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{{ (lambda: 1)() }}",
        "{% for m in messages %}",
        "{{ messages.nothing.here }}",
        "{{ 1 / 0 }}",
        "{{ messages[0]['content'] + 1 }}",
    ],
)
def test_a_bad_template_is_one_refused_request(template: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(template)
    said = caught.value.message
    assert "\n" not in said and "Traceback" not in said and "/" not in said


def test_template_errors_are_reported() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_only_text_parts_are_taken() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    with pytest.raises(RequestError, match="'image_url' is not supported"):
        render(STRINGS, [{"role": "user", "content": [image]}])
    with pytest.raises(RequestError, match="needs a string 'text'"):
        render(STRINGS, [{"role": "user", "content": [{"type": "text"}]}])


def test_continuing_needs_something_to_continue() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(STRINGS + "!", **options) == "[Hello"
    with pytest.raises(RequestError, match="drops the last message"):
        render("nothing", **options)
    with pytest.raises(RequestError, match="with content"):
        render(STRINGS, [{"role": "assistant", "content": None}], **options)
    with pytest.raises(RequestError, match="add_generation_prompt"):
        render(STRINGS, continue_final_message=True)


def test_the_model_chooses_among_its_templates() -> None:
    tokenizer = bare(default="D", tool_use="T", rag="R")
    tools = [{"type": "function"}]
    assert render_chat(tokenizer, HELLO) == "D"
    assert render_chat(tokenizer, HELLO, tools=tools) == "T"
    assert render_chat(tokenizer, HELLO, chat_template="rag") == "R"
    assert render_chat(tokenizer, HELLO, chat_template="own") == "own"
    with pytest.raises(RequestError, match="--chat-template"):
        render_chat(BARE, HELLO)
    with pytest.raises(RequestError, match="rag"):
        render_chat(bare(rag="R"), HELLO)


def test_time_can_be_asked_for() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_a_template_option_is_a_path_or_the_template(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ 1 }}")
    assert load_chat_template(str(file)) == "{{ 1 }}"
    assert load_chat_template("{{ 2 }}") == "{{ 2 }}"
    assert load_chat_template(None) is None
    with pytest.raises(UsageError, match="cannot be read"):
        load_chat_template(str(tmp_path / "absent.jinja"))
    with pytest.raises(UsageError, match="does not parse"):
        load_chat_template("{% if %}")


def test_the_demo_renders_its_default_system_prompt(demo_metadata: dict[str, Any]) -> None:
    demo = Tokenizer(tokenizer_from_gguf(demo_metadata))
    prompt = render_chat(demo, HELLO)
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
