"""The order in which waiting requests are admitted: first come, by priority, by fair shares, or
first come in turns of short and long prompts.

Any request can be removed at any time: its client may leave.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from vllm_lite.core.request import Request


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
        self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        """O(1)."""
        del self._requests[request.request_id]

    def peek(self) -> Request:
        return next(iter(self._requests.values()))

    def __len__(self) -> int:
        return len(self._requests)


class TurnQueue:
    """First come, first served among short prompts, and among long ones; the two take turns.

    For prompts that are computed whole: a long one leaves no room for others in its step of
    `step_tokens`. The turn is of those who were given fewer tokens, so that neither kind waits for
    more than about a step's tokens of the other; time away earns a step at most.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._lanes = (FCFSQueue(), FCFSQueue())
        # Tokens that each was given; those of a removed prompt count until it is put back.
        self._given = [0, 0]

    def add(self, request: Request) -> None:
        lane = self._lane_of(request)
        self._given[lane] = max(self._given[lane], self._given[1 - lane] - self._step_tokens)
        self._lanes[lane].add(request)

    def put_back(self, request: Request) -> None:
        lane = self._lane_of(request)
        self._given[lane] -= request.num_tokens
        self._lanes[lane].put_back(request)

    def remove(self, request: Request) -> None:
        """O(1); one that is finished was given nothing."""
        lane = self._lane_of(request)
        self._lanes[lane].remove(request)
        if not request.status.is_finished:
            self._given[lane] += request.num_tokens

    def peek(self) -> Request:
        short, long = self._lanes
        is_long = not short or (long and self._given[1] < self._given[0])
        return self._lanes[bool(is_long)].peek()

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def _lane_of(self, request: Request) -> int:
        return int(request.num_tokens > self._step_tokens // _SHORT_SHARE)


# A prompt is long if fewer of its kind fit into a step.
_SHORT_SHARE = 8


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


class FairQueue:
    """The least served tenant comes first; its own requests are first come, first served.

    Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024):
    a counter for each tenant grows by the tokens computed for it. The queue charges a prompt
    when a request is removed, and later the tokens that the request generates. A tenant that
    comes back starts no lower than those who wait: time away earns nothing.
    """

    def __init__(self) -> None:
        # Tenants that wait, in the order in which they began to.
        self._waiting: dict[str, FCFSQueue] = {}
        self._counters: dict[str, float] = {}
        # Removed requests, and the charge of each unfinished one.
        self._given: dict[str, Request] = {}
        self._charged: dict[str, float] = {}
        self._num_waiting = 0
        # The counter of the tenant that was the last to wait.
        self._floor = 0.0

    def add(self, request: Request) -> None:
        self._settle()
        self._queue_of(request.tenant).add(request)
        self._num_waiting += 1

    def put_back(self, request: Request) -> None:
        """At the front of its tenant's requests; a prompt that never ran costs nothing."""
        del self._given[request.request_id]
        if request.num_cached_tokens is None:
            self._charge(request, 0.0)
        self._queue_of(request.tenant).put_back(request)
        self._num_waiting += 1

    def remove(self, request: Request) -> None:
        """Remove a request that is admitted or whose client has left."""
        tenant = request.tenant
        queue = self._waiting[tenant]
        queue.remove(request)
        self._num_waiting -= 1
        self._given[request.request_id] = request
        self._charge(request, _cost(request))
        if not queue:
            del self._waiting[tenant]
            self._floor = self._counters[tenant]

    def peek(self) -> Request:
        self._settle()
        counters = self._counters
        return self._waiting[min(self._waiting, key=counters.__getitem__)].peek()

    def __len__(self) -> int:
        return self._num_waiting

    def _queue_of(self, tenant: str) -> FCFSQueue:
        queue = self._waiting.get(tenant)
        if queue is None:
            counters = self._counters
            floor = min((counters[one] for one in self._waiting), default=self._floor)
            # Last in the order of those whose counters are dropped first.
            counters[tenant] = max(counters.pop(tenant, 0.0), floor)
            queue = self._waiting[tenant] = FCFSQueue()
            self._forget_idle()
        return queue

    def _settle(self) -> None:
        """Charge the tokens that removed requests have generated since."""
        gone = []
        for request_id, request in self._given.items():
            if request.status.is_finished:
                gone.append(request_id)
                # A request that never ran costs nothing.
                ran = request.num_cached_tokens is not None
                self._charge(request, _cost(request) if ran else 0.0)
            else:
                self._charge(request, _cost(request))
        for request_id in gone:
            del self._given[request_id], self._charged[request_id]

    def _charge(self, request: Request, cost: float) -> None:
        """Charge the tenant a total of `cost` for the request."""
        owed = self._charged.get(request.request_id, 0.0)
        if cost != owed:
            self._charged[request.request_id] = cost
            counters = self._counters
            counters[request.tenant] = counters.get(request.tenant, 0.0) + cost - owed

    def _forget_idle(self) -> None:
        """Bound the number of counters of tenants without requests."""
        surplus = len(self._counters) - MAX_IDLE_TENANTS - len(self._waiting) - len(self._given)
        if surplus > 0:
            busy = {request.tenant for request in self._given.values()} | self._waiting.keys()
            for tenant in [one for one in self._counters if one not in busy][:surplus]:
                del self._counters[tenant]


MAX_IDLE_TENANTS = 1024
# A generated token takes about as much of a batch's time as two of a prompt.
OUTPUT_WEIGHT = 2.0


def _cost(request: Request) -> float:
    """The computation a request took, in prompt tokens; cached ones are free."""
    computed = request.num_prompt_tokens - (request.num_cached_tokens or 0)
    return computed + OUTPUT_WEIGHT * request.num_output_tokens


_POLICIES: dict[str, Callable[[], RequestQueue]] = {
    "fcfs": FCFSQueue,
    "priority": PriorityQueue,
    "fair": FairQueue,
}


def request_queue(policy: str, whole_tokens: int = 0) -> RequestQueue:
    """The queue of a scheduling policy: `fcfs`, `priority` or `fair`.

    Where each prompt is computed in one step, `whole_tokens` are those of a step.
    """
    if policy == "fcfs" and whole_tokens:
        return TurnQueue(whole_tokens)
    return _POLICIES[policy]()


def choose_victim(running: list[Request], policy: str) -> tuple[Request, int]:
    """The request to preempt, the last or least urgent, and its place."""
    place = len(running) - 1
    if policy == "priority":
        place = max(
            range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_time, i)
        )
    return running[place], place
