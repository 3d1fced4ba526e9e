"""Lists that clients read a page at a time, as OpenAI's do.

Knows nothing of what is listed but its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_lite.errors import RequestError

Item = dict[str, Any]

MAX_LIMIT = 100
_DEFAULT_LIMIT = 20
_ORDERS = ("desc", "asc")


def page_of(
    items: Sequence[Item],
    query: Mapping[str, str],
    show: Callable[[Item], Item] = dict,
    *,
    most: int = MAX_LIMIT,
    default: int = _DEFAULT_LIMIT,
) -> Item:
    """The page of `items`, oldest first, that limit, order and after ask for.

    Raises RequestError that names the parameter at fault.
    """
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    # isdecimal alone would let through digits that int() does not take.
    is_number = limit.isascii() and limit.isdecimal() and len(limit) <= len(str(most))
    if not is_number or not 1 <= int(limit) <= most:
        raise RequestError.about("limit", f"must be a number from 1 to {most}")
    if order not in _ORDERS:
        raise RequestError.about("order", f"must be one of {', '.join(_ORDERS)}")
    listed = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if "after" in query:
        places = {item["id"]: place for place, item in enumerate(listed)}
        if query["after"] not in places:
            raise RequestError.about("after", "must be the id of an item of this list")
        start = places[query["after"]] + 1
    data = [show(item) for item in listed[start : start + int(limit)]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + len(data) < len(listed),
    }
