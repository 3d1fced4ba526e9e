"""GET /v1/responses/{id}/input_items: what a stored response answered, a page at a time.

Knows no store. Invariant: every item is shown as OpenAI's clients read it, however short the form
in which it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_lite.errors import RequestError

Item = dict[str, Any]

MAX_LIMIT = 100
_DEFAULT_LIMIT = 20
_ORDERS = ("desc", "asc")


def page_of(items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Any]:
    """The page of `items`, oldest first, that limit, order and after ask for.

    Raises RequestError that names the parameter at fault.
    """
    limit, order = query.get("limit", str(_DEFAULT_LIMIT)), query.get("order", "desc")
    # isdecimal alone would let through digits that int() does not take.
    is_number = limit.isascii() and limit.isdecimal() and len(limit) <= len(str(MAX_LIMIT))
    if not is_number or not 1 <= int(limit) <= MAX_LIMIT:
        raise RequestError(f"limit must be a number from 1 to {MAX_LIMIT}", "limit")
    if order not in _ORDERS:
        raise RequestError(f"order must be one of {', '.join(_ORDERS)}", "order")
    listed = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if "after" in query:
        places = {item["id"]: place for place, item in enumerate(listed)}
        if query["after"] not in places:
            raise RequestError("after must be the id of an item of this response", "after")
        start = places[query["after"]] + 1
    data = [_shown(item) for item in listed[start : start + int(limit)]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + len(data) < len(listed),
    }


def _shown(item: Item) -> Item:
    whole = {"status": "completed", **item}
    if item["type"] == "reasoning":
        whole.setdefault("summary", [])
    elif item["type"] == "message" and isinstance(item.get("content"), str):
        part = {"type": "input_text", "text": item["content"]}
        if item["role"] == "assistant":
            part = {"type": "output_text", "text": item["content"], "annotations": []}
        whole["content"] = [part]
    return whole
