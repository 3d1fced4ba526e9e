"""Anthropic's turns of content blocks to chat messages.

Knows no engine. Invariant: a tool's result becomes a message of its own, before the text that
comes with it.
"""

from __future__ import annotations

from typing import Any

from vllm_lite.errors import RequestError
from vllm_lite.server.errors import UnsupportedError

Block = dict[str, Any]
ChatMessage = dict[str, Any]

# A line that Claude Code sends with a value of every request's own: it would keep every prompt
# from being found in the prefix cache.
_BILLING = "x-anthropic-billing-header"


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
        raise RequestError(
            f"{path}.content must be a string or a list of blocks", f"{path}.content"
        )
    return {
        "role": "tool",
        "tool_call_id": _string(path, block, "tool_use_id"),
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
                reasoning.append(_string(place, block, "thinking"))
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
        raise RequestError(f"{path}.input must be an object", f"{path}.input")
    return {
        "id": _string(path, block, "id"),
        "type": "function",
        "function": {
            "name": _string(path, block, "name"),
            "arguments": arguments,
        },
    }


def _texts(path: str, blocks: list[Block]) -> list[str]:
    return [_text(f"{path}.{index}", block) for index, block in enumerate(blocks)]


def _text(path: str, block: object) -> str:
    if not isinstance(block, dict):
        raise RequestError(f"{path} must be an object with a type", path)
    if block.get("type") != "text":
        raise UnsupportedError(
            f"{path}.type {block.get('type')!r:.40} is not supported here: this model takes text "
            "only",
            f"{path}.type",
        )
    return _string(path, block, "text")


def _string(path: str, block: Block, name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{path}.{name} must be a string", f"{path}.{name}")
    return value
