"""The body of POST /v1/chat/completions, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

from pydantic import Field

from vllm_lite.errors import RequestError
from vllm_lite.parsers.tools.spec import NamedTool, ToolChoice, ToolSpec
from vllm_lite.server.body import parse
from vllm_lite.server.errors import UnsupportedError
from vllm_lite.server.openai.sampling_protocol import Count, SamplingFields

MAX_TOOL_NAME = 256
_CHOICES = ("none", "auto", "required")
MAX_MESSAGES = 16384
MAX_PARTS = 16384
MAX_ROLE = 64
MAX_TOOLS = 1024
MAX_DOCUMENTS = 4096
MAX_TEMPLATE = 1 << 18
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})


def tool_specs(tools: list[dict[str, Any]] | None) -> tuple[ToolSpec, ...]:
    """The functions that `tools` describe; raises RequestError that names the tool at fault."""
    return tuple(_spec(f"tools.{index}", tool) for index, tool in enumerate(tools or ()))


def _spec(path: str, tool: dict[str, object]) -> ToolSpec:
    if tool.get("type", "function") != "function":
        kind = tool["type"]
        raise RequestError(f"{path}.type {kind!r:.40} is not supported; use function", path)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError.about(f"{path}.function", "must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TOOL_NAME:
        raise RequestError.about(
            f"{path}.function.name", f"must be a string of 1 to {MAX_TOOL_NAME} characters"
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError.about(f"{path}.function.parameters", "must be a JSON schema")
    strict = function.get("strict")
    if strict not in (None, True, False):
        raise RequestError(f"{path}.function.strict must be true or false", f"{path}.function")
    return ToolSpec(name, parameters or {}, strict)


def allowed_tools(
    choice: str | dict[str, object] | None, tools: tuple[ToolSpec, ...]
) -> tuple[tuple[ToolSpec, ...], str | dict[str, object] | None]:
    """The tools that may be called and the choice among them, where `choice` narrows them.

    The prompt shows all tools, so that it stays the same. Raises RequestError.
    """
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    given = choice.get("allowed_tools")
    mode = given.get("mode") if isinstance(given, dict) else None
    listed = given.get("tools") if isinstance(given, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise RequestError(
            "tool_choice.allowed_tools needs a mode, auto or required, and a list of tools",
            "tool_choice",
        )
    known = {tool.name: tool for tool in tools}
    chosen: dict[str, ToolSpec] = {}
    for name in map(_name_of, listed):
        if not isinstance(name, str) or name not in known:
            raise RequestError.about(
                "tool_choice", f"allows {name!r:.80}, which is not one of the tools"
            )
        chosen[name] = known[name]
    return tuple(chosen.values()), mode


def _name_of(choice: object) -> object:
    function = choice.get("function") if isinstance(choice, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def tool_choice_of(
    choice: str | dict[str, object] | None, tools: tuple[ToolSpec, ...]
) -> ToolChoice:
    """`choice` as given by a client; without one, "auto" where there are tools.

    Raises RequestError for a choice that is none, or that the tools do not allow.
    """
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str) and choice in _CHOICES:
        if choice != "none" and not tools:
            raise RequestError.about("tool_choice", f"{choice} needs tools")
        return choice  # type: ignore[return-value]
    name = _name_of(choice)
    if not isinstance(name, str):
        raise RequestError.about(
            "tool_choice",
            'must be none, auto, required, {"type": "function", "function": {"name": ...}} or of '
            "type allowed_tools",
        )
    if all(tool.name != name for tool in tools):
        raise RequestError.about(
            "tool_choice", f"names {name!r:.80}, which is not one of the tools"
        )
    return NamedTool(name)


class TemplateFields(SamplingFields):
    """Fields that decide how messages become a prompt."""

    HARMLESS = SamplingFields.HARMLESS | {"verbosity"}
    LATER: ClassVar[Mapping[str, str]] = {
        "functions": "function calling (and is deprecated: use tools)",
        "function_call": "function calling (and is deprecated: use tool_choice)",
        "audio": "audio output",
        "prediction": "predicted output",
        "web_search_options": "web search",
    }

    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES, fail_fast=True)]
    """The conversation. Content is text, or a list of text parts."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    """Functions that the model may call, each with a JSON schema."""
    documents: (
        Annotated[list[dict[str, object]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None
    ) = None
    """Documents, for templates that show them."""
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE)] | None = None
    """Jinja, in place of the model's own; needs --trust-request-chat-template."""
    chat_template_kwargs: dict[str, object] | None = None
    """Variables of the template."""
    add_generation_prompt: bool = True
    """Let the prompt end where the assistant's reply begins."""
    continue_final_message: bool = False
    """Let it end inside the last message; needs add_generation_prompt false."""
    add_special_tokens: bool = False
    """Let the tokenizer add what it puts at a text's beginning."""

    def check_template_fields(self, *, trust_template: bool) -> None:
        check_messages("messages", self.messages)
        check_template(self.chat_template, is_trusted=trust_template)
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError.about(
                "continue_final_message", "needs add_generation_prompt to be false"
            )
        if self.tools is not None and not self.tools:
            raise RequestError.about("tools", "must not be empty; leave it out")
        if self.tools:
            tool_specs(self.tools)


class ChatCompletionRequest(TemplateFields):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = None
    """The same as max_tokens, and goes before it."""
    logprobs: bool | None = None
    """Give the log-probability of each token."""
    top_logprobs: Count | None = None
    """The number of candidates to report for each token; -1: all."""
    tool_choice: str | dict[str, object] | None = None
    """none, auto, required, a function, or allowed_tools; auto where there are tools."""
    parallel_tool_calls: bool | None = None
    """False keeps the first call only."""
    include_reasoning: bool = True
    """False leaves reasoning out, and the tokens and logprobs that would show it."""
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    """none to max, for templates that know it; sets enable_thinking too."""
    modalities: Annotated[list[str], Field(max_length=8, fail_fast=True)] | None = None
    """Only text."""
    return_prompt_text: bool | None = None
    """Give the text that the template made."""

    def check(self, *, trust_template: bool, max_logprobs: int, vocab_size: int) -> None:
        """Raise RequestError for what the types alone do not refuse."""
        self.check_together()
        self.check_template_fields(trust_template=trust_template)
        if self.logprob_token_ids is not None and not self.logprobs:
            raise RequestError.about("logprob_token_ids", "needs logprobs to be true")
        if self.modalities is not None and self.modalities != ["text"]:
            raise UnsupportedError.about("modalities", 'can only be ["text"] here')
        top = self.top_logprobs
        if top is None:
            return
        most = vocab_size if max_logprobs == -1 else max_logprobs
        if top < -1 or max(top, vocab_size if top == -1 else 0) > most:
            raise RequestError.about(
                "top_logprobs",
                f"must be in [0, {most}] (--max-logprobs), or -1 for all {vocab_size} where that "
                f"allows it; got {top}",
            )
        if top and not self.logprobs:
            raise RequestError.about("top_logprobs", "needs logprobs to be true")

    @property
    def limit(self) -> tuple[int | None, str]:
        """The largest number of tokens asked for, and the field that asks."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def template_kwargs(self) -> dict[str, object]:
        given = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            given.setdefault("reasoning_effort", self.reasoning_effort)
            given.setdefault("enable_thinking", self.reasoning_effort != "none")
        return given


def check_messages(path: str, messages: object) -> list[dict[str, Any]]:
    """`messages` as a conversation that a template may render; raises RequestError."""
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RequestError.about(path, "must be a list of messages")
    if not messages:
        raise RequestError.about(path, "must not be empty")
    if len(messages) > MAX_MESSAGES:
        raise RequestError.about(path, f"must have at most {MAX_MESSAGES} messages")
    num_parts = 0
    for index, message in enumerate(messages):
        _check_message(f"{path}.{index}", message)
        content = message.get("content")
        num_parts += len(content) if isinstance(content, list) else 0
    if num_parts > MAX_PARTS:
        raise RequestError.about(
            path, f"must have at most {MAX_PARTS} parts in all, got {num_parts}"
        )
    return messages


def check_template(template: str | None, *, is_trusted: bool) -> None:
    """Raise RequestError for a client's own template, unless those are trusted."""
    if template is not None and not is_trusted:
        raise RequestError.about(
            "chat_template",
            "is refused: this server was started without --trust-request-chat-template",
        )


def _check_message(path: str, message: dict[str, object]) -> None:
    role = role_of(path, message)
    calls = message.get("tool_calls")
    if calls is not None and not (
        isinstance(calls, list)
        and all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls)
    ):
        raise RequestError.about(
            f"{path}.tool_calls", "must be a list of objects, each with a function"
        )
    content = message.get("content")
    if content is None and role == "assistant":
        return
    if isinstance(content, list) and len(content) <= MAX_PARTS:
        for index, part in enumerate(content):
            _check_part(f"{path}.content.{index}", part)
    elif not isinstance(content, str):
        raise RequestError.about(
            f"{path}.content", f"must be a string or a list of at most {MAX_PARTS} parts"
        )


def _check_part(path: str, part: object) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict):
        raise RequestError.about(path, "must be an object with a type")
    kind = part.get("type", "text")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise RequestError.about(
            f"{path}.type", f"{kind!r:.40} is not supported: this model takes text only"
        )
    field = kind if kind in ("refusal", "thinking") else "text"
    string_of(path, part, field)


def role_of(path: str, message: Mapping[str, object]) -> str:
    """The role of the message at `path`; raises RequestError."""
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= MAX_ROLE:
        raise RequestError.about(f"{path}.role", f"must be a string of 1 to {MAX_ROLE} characters")
    return role


def string_of(path: str, given: Mapping[str, object], name: str) -> str:
    """The text under `name` in the object at `path`; raises RequestError."""
    value = given.get(name)
    if not isinstance(value, str):
        raise RequestError.about(f"{path}.{name}", "must be a string")
    return value


def chat_request(fields: dict[str, object]) -> ChatCompletionRequest:
    return parse(ChatCompletionRequest, fields, ChatCompletionRequest.HARMLESS)


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Rename chat's fields in refusals to those of the client's API, by `names`."""
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            field, dot, rest = error.param.partition(".")
            if field in names:
                error.message = error.message.replace(field, names[field])
                error.param = names[field] + dot + rest
        raise
