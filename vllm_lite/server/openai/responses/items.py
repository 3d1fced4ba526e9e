"""How the input items of a stored response are shown: in full, however short they were sent."""

from __future__ import annotations

from typing import Any

Item = dict[str, Any]


def shown(item: Item) -> Item:
    """The item as OpenAI's clients read it."""
    whole = {"status": "completed", **item}
    if item["type"] == "reasoning":
        whole.setdefault("summary", [])
    elif item["type"] == "message" and isinstance(item.get("content"), str):
        part = {"type": "input_text", "text": item["content"]}
        if item["role"] == "assistant":
            part = {"type": "output_text", "text": item["content"], "annotations": []}
        whole["content"] = [part]
    return whole
