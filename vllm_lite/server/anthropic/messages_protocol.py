"""The bodies of POST /v1/messages and /v1/messages/count_tokens, checked.

Knows no engine. What both APIs have in common is said in chat's words and checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from vllm_lite.errors import RequestError
from vllm_lite.server.errors import UnsupportedError
from vllm_lite.server.openai.chat_protocol import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, string_of
from vllm_lite.server.openai.sampling_protocol import RequestBody

Block = dict[str, Any]
ChatMessage = dict[str, Any]
# A line that Claude Code sends with a value of every request's own: it would keep every prompt
# from being found in the prefix cache.
_BILLING = "x-anthropic-billing-header"
# Chat's names of fields -> this request's.
CHAT_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}
_SAME = ("model", "temperature", "top_p", "top_k", "cache_salt", "chat_template_kwargs", "priority")
MIN_THINKING_BUDGET = 1024
Blocks = Annotated[list[dict[str, object]], Field(max_length=MAX_PARTS, fail_fast=True)]


def chat_messages(
    system: str | list[Block] | None, turns: list[tuple[str, str | list[Block]]]
) -> list[ChatMessage]:
    """The chat messages of a system prompt and (role, content) turns; raises RequestError."""
    messages: list[ChatMessage] = []
    _add_system(messages, "system", system or "")
    for index, (role, content) in enumerate(turns):
        path = f"messages.{index}.content"
        if role == "system":
            _add_system(messages, path, content)
        elif isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif role == "user":
            _add_user(messages, path, content)
        else:
            messages.append(_assistant(path, content))
    return messages


def with_system_first(messages: list[ChatMessage]) -> list[ChatMessage]:
    """`messages` for a template that wants one system message, at the beginning."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n".join(texts)}, *others]


def _add_system(messages: list[ChatMessage], path: str, content: str | list[Block]) -> None:
    texts = [content] if isinstance(content, str) else _texts(path, content)
    text = "".join(text for text in texts if not text.startswith(_BILLING))
    if text:
        messages.append({"role": "system", "content": text})


def _add_user(messages: list[ChatMessage], path: str, blocks: list[Block]) -> None:
    parts = []
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        if block.get("type") == "tool_result":
            messages.append(_tool_result(place, block))
        else:
            parts.append({"type": "text", "text": _text(place, block)})
    if parts or not blocks:
        content = parts[0]["text"] if len(parts) == 1 else parts or ""
        messages.append({"role": "user", "content": content})


def _tool_result(path: str, block: Block) -> ChatMessage:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(_texts(f"{path}.content", content))
    elif content is not None and not isinstance(content, str):
        raise RequestError.about(f"{path}.content", "must be a string or a list of blocks")
    return {
        "role": "tool",
        "tool_call_id": string_of(path, block, "tool_use_id"),
        "content": content or "",
    }


def _assistant(path: str, blocks: list[Block]) -> ChatMessage:
    message: ChatMessage = {"role": "assistant"}
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ChatMessage] = []
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        match block.get("type"):
            case "thinking":
                reasoning.append(string_of(place, block, "thinking"))
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case "tool_use":
                calls.append(_call(place, block))
            case _:
                texts.append(_text(place, block))
    message["content"] = "".join(texts)
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(path: str, block: Block) -> ChatMessage:
    arguments = block.get("input") or {}
    if not isinstance(arguments, dict):
        raise RequestError.about(f"{path}.input", "must be an object")
    return {
        "id": string_of(path, block, "id"),
        "type": "function",
        "function": {"name": string_of(path, block, "name"), "arguments": arguments},
    }


def _texts(path: str, blocks: list[Block]) -> list[str]:
    return [_text(f"{path}.{index}", block) for index, block in enumerate(blocks)]


def _text(path: str, block: object) -> str:
    if not isinstance(block, dict):
        raise RequestError.about(path, "must be an object with a type")
    if block.get("type") != "text":
        raise UnsupportedError.about(
            f"{path}.type",
            f"{block.get('type')!r:.40} is not supported here: this model takes text only",
        )
    return string_of(path, block, "text")


class Message(BaseModel):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class Tool(BaseModel):
    """A function that the client runs."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, object] = Field(default_factory=dict)
    strict: bool | None = None
    # Tools with another type run at Anthropic.
    type: str | None = None


class ToolChoice(BaseModel):
    """Whether and which tool to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(BaseModel):
    """Whether, and how much, to think first."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING_BUDGET)] | None = None
    display: Annotated[str, Field(max_length=64)] | None = None


class OutputFormat(BaseModel):
    """The schema of the text."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, object], Field(alias="schema")]


class OutputConfig(BaseModel):
    """The format of the text and the reasoning effort."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(RequestBody):
    """POST /v1/messages/count_tokens: what decides the prompt."""

    HARMLESS = frozenset(
        {"service_tier", "inference_geo", "speed", "betas", "anthropic_version", "diagnostics"}
    )
    LATER: ClassVar[Mapping[str, str]] = {
        "container": "a container for code",
        "mcp_servers": "MCP servers",
        "context_management": "compaction of a conversation",
    }

    model: Annotated[str, Field(min_length=1)]
    """One of the served names."""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """Turns of text or of blocks: text, thinking, tool_use, tool_result."""
    system: str | Blocks | None = None
    """A system message before them."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Functions that the client runs."""
    tool_choice: ToolChoice | None = None
    """auto, any, none, or a tool by name."""
    thinking: Thinking | None = None
    """How much to think; a model that does not think keeps within any budget."""
    output_config: OutputConfig | None = None
    """How much effort to make, and the schema of the text."""
    chat_template_kwargs: dict[str, object] | None = None

    def chat_body(self) -> dict[str, Any]:
        """The chat request that asks for the same; raises RequestError."""
        body: dict[str, Any] = {
            name: getattr(self, name) for name in _SAME if getattr(self, name, None) is not None
        }
        body["messages"] = chat_messages(
            self.system, [(message.role, message.content) for message in self.messages]
        )
        body |= self._tool_fields()
        body |= self._thinking_fields(body.get("chat_template_kwargs") or {})
        if self.output_config is not None and self.output_config.format is not None:
            schema = {"name": "output", "schema": self.output_config.format.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _tool_fields(self) -> dict[str, object]:
        tools, choice = self.tools or [], self.tool_choice
        for index, tool in enumerate(tools):
            if tool.type not in (None, "custom"):
                raise UnsupportedError.about(
                    f"tools.{index}.type",
                    f"{tool.type!r:.40} is not supported; tools are run by the client and have "
                    "the type custom",
                )
        fields: dict[str, object] = {"tools": [_function(tool) for tool in tools]} if tools else {}
        if choice is None:
            return fields
        if choice.type == "tool" and not choice.name:
            raise RequestError("tool_choice of type tool needs a name", "tool_choice.name")
        if choice.disable_parallel_tool_use is not None:
            fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        named = {"type": "function", "function": {"name": choice.name}}
        asked = {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type]
        if tools or choice.type in ("any", "tool"):
            fields["tool_choice"] = asked
        return fields

    def _thinking_fields(self, template_kwargs: dict[str, object]) -> dict[str, object]:
        fields: dict[str, object] = {}
        if self.output_config is not None and self.output_config.effort is not None:
            fields["reasoning_effort"] = self.output_config.effort
        if self.thinking is None or self.thinking.type == "adaptive":
            return fields
        if self.thinking.type == "disabled":
            return {"reasoning_effort": "none"}
        if self.thinking.budget_tokens is None:
            raise RequestError(
                "thinking of type enabled needs budget_tokens", "thinking.budget_tokens"
            )
        fields["thinking_token_budget"] = self.thinking.budget_tokens
        fields["chat_template_kwargs"] = {"enable_thinking": True, **template_kwargs}
        return fields


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    """Most tokens to generate."""
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    """Up to four texts that end the message before them."""
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, object] | None = None
    """user_id says who asks, for the policy fair where there are no keys."""
    cache_salt: str | None = None
    priority: int | None = None

    def chat_body(self) -> dict[str, Any]:
        """The chat request that asks for the same; raises RequestError."""
        budget = self.thinking.budget_tokens if self.thinking is not None else None
        if budget is not None and budget >= self.max_tokens:
            raise RequestError.about("thinking.budget_tokens", "must be less than max_tokens")
        body = super().chat_body()
        body["max_completion_tokens"] = self.max_tokens
        body["stream"] = bool(self.stream)
        if self.stop_sequences:
            body["stop"] = self.stop_sequences
        return body


# A client may send what it would send to /v1/messages; only the prompt matters.
CountTokensRequest.HARMLESS |= MessagesRequest.model_fields.keys()


def _function(tool: Tool) -> dict[str, object]:
    function: dict[str, object] = {
        "name": tool.name,
        "parameters": {"type": "object", **tool.input_schema},
    }
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
