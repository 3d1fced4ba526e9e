"""Input items to chat messages: what a conversation of /v1/responses means to a chat template.

Knows no engine. Invariant: what one assistant turn said in several items (reasoning, text,
calls) becomes one message.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from vllm_lite.errors import NotFoundError, RequestError
from vllm_lite.server.errors import UnsupportedError
from vllm_lite.server.openai.chat_protocol import MAX_PARTS, role_of, string_of

Item = dict[str, Any]
MAX_ITEMS = 16384
_REASONING = "reasoning_content"
_KINDS = ("message", "reasoning", "function_call", "function_call_output")
_REFERENCE = "item_reference"
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_UNFINISHED = ("in_progress", "incomplete")


def input_items(given: str | list[Item], find: Callable[[str], Item | None]) -> list[Item]:
    """The items of a request's `input`, each with a type and an id; raises RequestError.

    `find` gives the item that an item_reference names, or None.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not given:
        raise RequestError.about("input", "must not be empty")
    return [
        _referred(f"input.{index}", item, find)
        if item.get("type") == _REFERENCE
        else _identified(f"input.{index}", item)
        for index, item in enumerate(given)
    ]


def continues_last(items: list[Item]) -> bool:
    """Whether the last item is an assistant's text that broke off: the reply goes on with it."""
    last = items[-1]
    return (
        last["type"] == "message"
        and last.get("role") == "assistant"
        and last.get("status") in _UNFINISHED
    )


def chat_messages(items: list[Item], num_earlier: int = 0) -> list[dict[str, Any]]:
    """The messages that `items` make; raises RequestError that names the item.

    The first `num_earlier` items are not of this request, whose own count from 0.
    """
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items, -num_earlier):
        path = f"input.{index}"
        match item["type"]:
            case "message":
                _add_message(messages, path, item)
            case "reasoning":
                text = _reasoning(path, item)
                # Encrypted by someone else, or empty: nothing that a model could read.
                if text:
                    _assistant(messages, _REASONING)[_REASONING] = text
            case "function_call":
                calls = _assistant(messages, None).setdefault("tool_calls", [])
                calls.append(_call(path, item))
            case "function_call_output":
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": string_of(path, item, "call_id"),
                        "content": "".join(_texts(f"{path}.output", item.get("output"))),
                    }
                )
    return messages


def _referred(path: str, item: Item, find: Callable[[str], Item | None]) -> Item:
    found = find(string_of(path, item, "id"))
    if found is None:
        raise NotFoundError(
            f"{path}: there is no stored item with the id {item['id']!r:.80}", f"{path}.id"
        )
    return found


def _identified(path: str, item: Item) -> Item:
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind not in _KINDS:
        known = ", ".join((*_KINDS, _REFERENCE))
        raise UnsupportedError.about(
            f"{path}.type", f"{kind!r:.40} is not supported; items are: {known}"
        )
    given = item.get("id")
    if given is not None and not isinstance(given, str):
        raise RequestError.about(f"{path}.id", "must be a string")
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}.get(kind, "fco")
    return {**item, "type": kind, "id": given or f"{prefix}_{uuid.uuid4().hex}"}


def _add_message(messages: list[dict[str, Any]], path: str, item: Item) -> None:
    role, content = role_of(path, item), item.get("content")
    if role == "assistant":
        _assistant(messages, "content")["content"] = "".join(_texts(f"{path}.content", content))
    elif isinstance(content, str):
        messages.append({"role": role, "content": content})
    else:
        parts = [{"type": "text", "text": text} for text in _texts(f"{path}.content", content)]
        messages.append({"role": role, "content": parts})


def _assistant(messages: list[dict[str, Any]], field: str | None) -> dict[str, Any]:
    """The assistant's turn that is still open: where `field` is yet to be said."""
    last = messages[-1] if messages else None
    is_open = last is not None and last["role"] == "assistant"
    if last is not None and is_open and (field is None or not _is_said(last, field)):
        return last
    messages.append({"role": "assistant"})
    return messages[-1]


def _is_said(message: dict[str, object], field: str) -> bool:
    """Whether `field` would come too late: the parts of a turn have an order."""
    order = (_REASONING, "content", "tool_calls")
    return any(name in message for name in order[order.index(field) :])


def _reasoning(path: str, item: Item) -> str:
    content = item.get("content")
    if not content:
        return "".join(_texts(f"{path}.summary", item.get("summary") or ""))
    return "".join(_texts(f"{path}.content", content))


def _call(path: str, item: Item) -> dict[str, object]:
    return {
        "id": string_of(path, item, "call_id"),
        "type": "function",
        "function": {"name": string_of(path, item, "name"), "arguments": item.get("arguments")},
    }


def _texts(path: str, content: object) -> list[str]:
    """The texts of `content`, which is one or a list of parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        raise RequestError.about(path, f"must be a string or a list of at most {MAX_PARTS} parts")
    return [_part_text(f"{path}.{index}", part) for index, part in enumerate(content)]


def _part_text(path: str, part: object) -> str:
    if not isinstance(part, dict):
        raise RequestError.about(path, "must be an object with a type")
    kind = part.get("type", "text")
    if kind == "refusal":
        return string_of(path, part, "refusal")
    if kind not in _TEXT_PARTS:
        raise UnsupportedError.about(
            f"{path}.type", f"{kind!r:.40} is not supported: this model takes text only"
        )
    return string_of(path, part, "text")


def shown(item: Item) -> Item:
    whole = {"status": "completed", **item}
    if item["type"] == "reasoning":
        whole.setdefault("summary", [])
    elif item["type"] == "message" and isinstance(item.get("content"), str):
        part = {"type": "input_text", "text": item["content"]}
        if item["role"] == "assistant":
            part = {"type": "output_text", "text": item["content"], "annotations": []}
        whole["content"] = [part]
    return whole
