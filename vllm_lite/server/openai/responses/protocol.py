"""The body of POST /v1/responses, checked, and what it asks of a chat model.

Knows no engine. A field of the same name as chat's means the same and is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from vllm_lite.errors import RequestError
from vllm_lite.server.errors import UnsupportedError
from vllm_lite.server.openai.chat_protocol import MAX_TOOLS, ChatCompletionRequest, string_of
from vllm_lite.server.openai.responses.input import MAX_ITEMS
from vllm_lite.server.openai.sampling_protocol import SamplingChoices

MAX_METADATA = 16
MAX_ID = 256
LOGPROBS = "message.output_text.logprobs"

# Chat's names of fields -> this request's.
CHAT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "truncate_prompt_tokens": "truncation",
    "logprobs": "top_logprobs",
}


class Reasoning(BaseModel):
    """How much to think, and what of it to show."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    summary: Annotated[str, Field(max_length=64)] | None = None
    generate_summary: Annotated[str, Field(max_length=64)] | None = None


class TextConfig(BaseModel):
    """The format of the text."""

    format: dict[str, object] | None = None
    verbosity: Annotated[str, Field(max_length=64)] | None = None


Items = Annotated[list[dict[str, object]], Field(max_length=MAX_ITEMS, fail_fast=True)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
]
# What a client may ask to be included; all but the log-probabilities is of tools that OpenAI runs.
Extra = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponsesRequest(SamplingChoices):
    """POST /v1/responses."""

    HARMLESS = frozenset(
        {
            *("client_metadata", "max_tool_calls", "prompt_cache_key", "prompt_cache_options"),
            *("prompt_cache_retention", "safety_identifier", "session_id", "stream_options"),
        }
    )
    LATER: ClassVar[Mapping[str, str]] = {
        "prompt": "stored prompt templates",
        "conversation": "stored conversations (use previous_response_id)",
        "context_management": "compaction of a conversation",
        "moderation": "moderation",
    }

    input: str | Items
    """A text, or items: message, reasoning, function_call, function_call_output."""
    model: str | None = None
    instructions: str | None = None
    """A system message before the input; the next response does not keep it."""
    previous_response_id: Annotated[str, Field(max_length=MAX_ID)] | None = None
    """The stored response to go on from."""
    previous_input_messages: Items | None = None
    """Chat messages that come before the input."""
    background: bool | None = None
    """Answer at once, with the status queued, and go on alone; needs the store."""
    store: bool | None = None
    """Keep the response for GET and for previous_response_id; true by default."""
    stream: bool | None = None
    include: Annotated[list[Extra], Field(max_length=16, fail_fast=True)] | None = None
    """message.output_text.logprobs shows log-probabilities; the rest is OpenAI's tools'."""
    max_output_tokens: int | None = None
    """Most tokens to generate; the rest of the context by default."""
    max_tool_calls: int | None = None
    """Of tools that a server runs; there are none here."""
    top_logprobs: int | None = None
    reasoning: Reasoning | None = None
    """How much to reason; there are no summaries."""
    text: TextConfig | None = None
    """The format: text, json_object or json_schema."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    tool_choice: str | dict[str, object] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """Whether an input that is too long loses its beginning (auto) or is refused."""
    metadata: Metadata | None = None
    """Up to 16 texts by name, repeated in the response."""
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    """Repeated in the response."""
    user: Annotated[str, Field(max_length=512)] | None = None
    """The tenant under the fair policy where there are no keys; repeated in the response."""
    enable_response_messages: bool = False
    """Show the prompt and the output as text and tokens."""

    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    structured_outputs: dict[str, object] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, object] | None = None
    documents: Annotated[list[dict[str, object]], Field(fail_fast=True)] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def format(self) -> dict[str, object]:
        """The format of the text; plain text by default."""
        given = self.text.format if self.text is not None else None
        return given or {"type": "text"}

    def check(self) -> None:
        """Raise RequestError for fields that do not go together."""
        if self.background and self.store is False:
            raise RequestError.about("background", "needs store to be true")
        if self.background and self.enable_response_messages:
            raise RequestError.about(
                "enable_response_messages", "cannot be combined with background"
            )
        if self.previous_input_messages and self.previous_response_id:
            raise RequestError.about(
                "previous_input_messages", "and previous_response_id exclude each other"
            )
        if self.top_logprobs and not self.wants_logprobs:
            raise RequestError.about("top_logprobs", f"needs {LOGPROBS!r} in include")
        if self.structured_outputs is not None and self.format.get("type") != "text":
            raise RequestError.about("structured_outputs", "and text.format exclude each other")

    def chat_fields(self) -> dict[str, object]:
        """The fields of the chat request that this one stands for, but for its messages.

        Raises RequestError for tools and formats that a chat request has no words for.
        """
        fields = {name: getattr(self, name) for name in _SAME if getattr(self, name) is not None}
        # Deltas too where a cancelled response is to keep what it had, and where each token's
        # log-probability has to find its text.
        fields["stream"] = bool(self.stream or self.background or self.wants_logprobs)
        if self.max_output_tokens is not None:
            fields["max_completion_tokens"] = self.max_output_tokens
        if self.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.reasoning is not None and self.reasoning.effort is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        if self.truncation == "auto":
            fields["truncate_prompt_tokens"] = -1
        if self.format.get("type") != "text":
            fields["response_format"] = _response_format(self.format)
        fields |= _tool_fields(self.tools or [], self.tool_choice)
        return fields


# Fields that chat has under the same name with the same meaning.
_SAME = ResponsesRequest.model_fields.keys() & ChatCompletionRequest.model_fields
_SAME -= {"stream", "tools", "tool_choice", "top_logprobs"}


def _response_format(given: dict[str, object]) -> dict[str, object]:
    """Chat's response_format; the schema lies one level deeper there."""
    if given.get("type") != "json_schema":
        return given
    inner = {key: value for key, value in given.items() if key != "type"}
    return {"type": "json_schema", "json_schema": inner}


def _tool_fields(
    tools: list[dict[str, Any]], choice: str | dict[str, object] | None
) -> dict[str, object]:
    functions = [_function(f"tools.{index}", tool) for index, tool in enumerate(tools)]
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind == "allowed_tools":
            return _allowed(functions, choice)
        if kind != "function" or not isinstance(choice.get("name"), str):
            raise UnsupportedError.about(
                "tool_choice", "must be none, auto, required, allowed_tools or a function by name"
            )
        choice = {"type": "function", "function": {"name": choice["name"]}}
    fields: dict[str, object] = {"tools": functions} if functions else {}
    if choice is not None and (functions or choice not in ("auto", "none")):
        fields["tool_choice"] = choice
    return fields


def _function(path: str, tool: dict[str, object]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise UnsupportedError.about(
            f"{path}.type", f"{tool.get('type')!r:.40} is not supported; tools are functions"
        )
    string_of(path, tool, "name")
    if not isinstance(tool.get("parameters") or {}, dict):
        raise RequestError.about(f"{path}.parameters", "must be a JSON schema")
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key != "type"},
    }


def _allowed(functions: list[dict[str, Any]], choice: dict[str, object]) -> dict[str, object]:
    listed = choice.get("tools")
    mode = choice.get("mode", "auto")
    if not isinstance(listed, list) or mode not in ("auto", "required"):
        raise RequestError.about(
            "tool_choice", "allowed_tools needs a list of tools and a mode, auto or required"
        )
    names = {tool.get("name") for tool in listed if isinstance(tool, dict)}
    chosen = [tool for tool in functions if tool["function"]["name"] in names]
    if len(chosen) != len(names):
        raise RequestError.about("tool_choice", "allows a tool that is not in tools")
    return {"tools": chosen, "tool_choice": mode}
