"""The order in which waiting requests are admitted: first come, or by priority.

Knows no resources. Any request can be taken out at any time: a client may leave.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Protocol

from vllm_lite.request import Request


class RequestQueue(Protocol):
    """Waiting requests in the order of admission."""

    def add(self, request: Request) -> None:
        """Queue a new request."""

    def put_back(self, request: Request) -> None:
        """Return a request that was admitted once: it goes before its equals."""

    def remove(self, request: Request) -> None:
        """Take out a request from anywhere."""

    def peek(self) -> Request:
        """The next request; the queue must not be empty."""

    def __len__(self) -> int: ...


class FCFSQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        """At the end."""
        self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        """At the front."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        """O(1)."""
        del self._requests[request.request_id]

    def peek(self) -> Request:
        """The oldest."""
        return next(iter(self._requests.values()))

    def __len__(self) -> int:
        return len(self._requests)


class PriorityQueue:
    """Smallest priority value first, then earliest arrival."""

    def __init__(self) -> None:
        # A removed entry stays in the heap until it surfaces or outnumbers the live ones.
        self._heap: list[_Entry] = []
        self._live: dict[str, _Entry] = {}
        self._first = self._last = 0

    def add(self, request: Request) -> None:
        """By its priority; O(log n)."""
        self._last += 1
        self._push(request, self._last)

    def put_back(self, request: Request) -> None:
        """By its priority, before others of the same arrival."""
        self._first -= 1
        self._push(request, self._first)

    def remove(self, request: Request) -> None:
        """O(1), amortised."""
        del self._live[request.request_id]
        if len(self._heap) > 2 * len(self._live) + 16:
            self._heap = sorted(self._live.values())

    def peek(self) -> Request:
        """The most urgent."""
        heap = self._heap
        while self._live.get(heap[0][3].request_id) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][3]

    def __len__(self) -> int:
        return len(self._live)

    def _push(self, request: Request, place: int) -> None:
        entry = (request.priority, request.arrival_time, place, request)
        self._live[request.request_id] = entry
        heapq.heappush(self._heap, entry)


# The place orders equal requests, so that two requests are never compared themselves.
_Entry = tuple[int, float, int, Request]


def request_queue(policy: str) -> RequestQueue:
    """The queue of a scheduling policy: `fcfs` or `priority`."""
    return PriorityQueue() if policy == "priority" else FCFSQueue()
