"""Render a conversation to a prompt with the model's chat template (Jinja).

Owns the sandbox, the shape of messages that templates expect, and what of a template's error a
client may see. Messages were validated before; the prompt is encoded without special tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_lite.errors import RequestError, UsageError

# Set by the request's own fields, never by chat_template_kwargs.
_RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    }
)
# Names that templates use for a message's reasoning.
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
# The space tells whether the template trims what it is given.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_END_MARK, _AFTER_MARK = "\ue000CONTINUE_HERE\ue001", " "


class TemplateOwner(Protocol):
    """The attributes of a tokenizer that templates use."""

    @property
    def chat_templates(self) -> Mapping[str, str]: ...
    @property
    def special_tokens(self) -> Mapping[str, str]: ...


class _RefusedByTemplate(jinja2.TemplateError):
    """The template called raise_exception: its message is meant for the user."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplate(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a model should not see."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


_environment = _make_environment()


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    return _environment.from_string(source)


@lru_cache(maxsize=64)
def _iterates_content(source: str) -> bool:
    """Whether the template loops over a message's content, so that it wants it in parts."""
    tree = _environment.parse(source)
    names = {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(_is_content(loop.iter, frozenset(names)) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: frozenset[str]) -> bool:
    """`message.content`, `message["content"]`, or a name that stands for it, through filters."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


@lru_cache(maxsize=64)
def shows_tools(source: str) -> bool:
    """Whether a template reads `tools`, so that the model may learn of them."""
    try:
        names = _environment.parse(source).find_all(nodes.Name)
    except jinja2.TemplateSyntaxError:
        return False
    return any(node.name == "tools" and node.ctx == "load" for node in names)


def load_chat_template(value: str | None) -> str | None:
    """The template that --chat-template gives: a file's path, or the template itself.

    Raises UsageError if the file is missing or the template does not parse.
    """
    if value is None:
        return None
    source = value
    if not any(char in value for char in "{}\n"):
        try:
            source = Path(value).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--chat-template {value} cannot be read ({error}); give a file's path, or a "
                "template with its braces"
            ) from None
    try:
        _compile(source)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(
            f"--chat-template does not parse: {error.message} (line {error.lineno})"
        ) from None
    return source


def render_chat(
    tokenizer: TemplateOwner,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    content_format: Literal["auto", "string", "openai"] = "auto",
) -> str:
    """The prompt for `messages`; encode it with add_special_tokens=False.

    `chat_template` is Jinja source, or the name of one of the model's templates; by default
    the model's own ("tool_use" if it has one and there are tools). With
    `continue_final_message` the prompt ends where the last message's text does. Content reaches
    the template as text ("string") or as a list of parts ("openai"); "auto" reads from the
    template which it wants. Raises RequestError, also for whatever the template refuses.
    """
    if continue_final_message and add_generation_prompt:
        raise RequestError.about(
            "continue_final_message", "needs add_generation_prompt to be false"
        )
    source = choose_template(tokenizer, chat_template, bool(tools))
    variables = dict(chat_template_kwargs or {})
    if reserved := sorted(_RESERVED & variables.keys()):
        raise RequestError.about(
            "chat_template_kwargs",
            f"cannot set {reserved[0]}; use the request's field of that name",
        )
    try:
        as_parts = content_format == "openai"
        if content_format == "auto":
            as_parts = _iterates_content(source)
        prepared = [_prepare_message(message, as_parts) for message in messages]
        if continue_final_message:
            _mark_end(prepared)
        context = {
            **tokenizer.special_tokens,
            **variables,
            "messages": prepared,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        rendered = _compile(source).render(context)
    except RequestError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # a template may fail in any way that Python can
        known = isinstance(error, jinja2.TemplateError)
        raise RequestError(_explain(error), "messages") from (None if known else error)
    rendered = _LONE_SURROGATE.sub("\ufffd", rendered)
    return _cut_at_mark(rendered) if continue_final_message else rendered


def choose_template(tokenizer: TemplateOwner, chosen: str | None, has_tools: bool) -> str:
    """The source that `chosen` is or names, else the model's own; raises RequestError."""
    templates = tokenizer.chat_templates
    if chosen is not None:
        return templates.get(chosen, chosen)
    if has_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" in templates:
        return templates["default"]
    if templates:
        names = ", ".join(sorted(templates))
        raise RequestError(
            f"The model has chat templates but no default; name one of: {names}", "chat_template"
        )
    raise RequestError(
        "The model has no chat template; start the server with --chat-template FILE, "
        "or use /v1/completions"
    )


def _explain(error: Exception) -> str:
    """The message for a client. Python's own errors can quote anything: only the log has them."""
    if isinstance(error, _RefusedByTemplate):
        return f"The chat template refuses these messages: {error.message}"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"The chat template does not parse: {error.message} (line {error.lineno})"
    if isinstance(error, jinja2.TemplateError):
        return f"The chat template cannot render these messages: {error.message}"
    return "The chat template cannot render these messages: a value is not of the type it expects"


def _prepare_message(message: Mapping[str, Any], as_parts: bool) -> dict[str, Any]:
    """A copy in the shape that templates are written for."""
    prepared = dict(message)
    # Templates take what a tool says as text, whatever they do with the rest.
    as_parts = as_parts and message.get("role") != "tool"
    prepared["content"] = _prepare_content(message.get("content"), as_parts)
    reasoning = next((message[k] for k in _REASONING if message.get(k) is not None), None)
    if reasoning is not None:
        prepared.update({name: message.get(name) or reasoning for name in _REASONING})
    if message.get("tool_calls"):
        prepared["tool_calls"] = [_prepare_call(call) for call in message["tool_calls"]]
    elif message.get("tool_calls") is not None:
        del prepared["tool_calls"]  # templates test whether the key is there
    return prepared


def _prepare_content(content: Any, as_parts: bool) -> Any:
    if content is None:
        return [] if as_parts else ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if as_parts else content
    texts = [part_text(part) for part in content]
    if as_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def part_text(part: Any) -> str:
    """The text of a part of a message's content; raises RequestError for what is no text."""
    if isinstance(part, str):
        return part
    kind = part.get("type", "text")
    field = _TEXT_PARTS.get(kind)
    if field is None:
        raise RequestError(
            f"A content part of type {kind!r} is not supported: this model takes text only",
            "messages",
        )
    text = part.get(field)
    if not isinstance(text, str):
        raise RequestError(f"A content part of type {kind!r} needs a string {field!r}", "messages")
    return text


def _prepare_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates expect the arguments of a call as an object; the API sends JSON text."""
    prepared = dict(call)
    function = call.get("function")
    if isinstance(function, Mapping):
        prepared["function"] = {**function, "arguments": _arguments(function.get("arguments"))}
    return prepared


def _arguments(given: Any) -> dict[str, Any]:
    """The object that a call's arguments are; {} where they are none, as where a call broke off."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    return dict(given) if isinstance(given, Mapping) else {}


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Write a mark after the last message's text; the prompt is cut there."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list) and content:
        content[-1]["text"] += _END_MARK + _AFTER_MARK
    elif isinstance(content, str) and content:
        messages[-1]["content"] = content + _END_MARK + _AFTER_MARK
    else:
        raise RequestError(
            "continue_final_message needs a last message with content to continue", "messages"
        )


def _cut_at_mark(rendered: str) -> str:
    end = rendered.rfind(_END_MARK)
    if end < 0:
        raise RequestError.about(
            "continue_final_message", "is not possible: the chat template drops the last message"
        )
    is_trimmed = not rendered.startswith(_AFTER_MARK, end + len(_END_MARK))
    return rendered[:end].rstrip() if is_trimmed else rendered[:end]
