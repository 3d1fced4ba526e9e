"""Every queue keeps its order through every removal and return."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import request
from vllm_lite.core.queue import RequestQueue, request_queue
from vllm_lite.core.request import Request


def drain(queue: RequestQueue) -> list[Request]:
    out = []
    while queue:
        out.append(queue.peek())
        queue.remove(out[-1])
    return out


@given(st.lists(st.tuples(st.integers(-1, 1), st.booleans()), max_size=60))
def test_remaining_requests_keep_their_order(entries: list[tuple[int, bool]]) -> None:
    requests = [request(1, priority=p, arrival_time=0.0) for p, _ in entries]
    for policy in ("fcfs", "priority", "fair"):
        queue = request_queue(policy)
        for r in requests:
            queue.add(r)
        for r, (_, leaves) in zip(requests, entries, strict=True):
            if leaves:
                queue.remove(r)
        stays = [r for r, (_, leaves) in zip(requests, entries, strict=True) if not leaves]
        if policy == "priority":
            stays.sort(key=lambda r: r.priority)
        assert len(queue) == len(stays)
        assert drain(queue) == stays


@pytest.mark.parametrize(
    "queue", [*map(request_queue, ("fcfs", "priority", "fair")), request_queue("fcfs", 64)]
)
def test_returned_request_precedes_its_equals(queue: RequestQueue) -> None:
    requests = [request(1, arrival_time=0.0) for _ in range(4)]
    for r in requests:
        queue.add(r)
    taken = [queue.peek()]
    queue.remove(taken[0])
    taken.append(queue.peek())
    queue.remove(taken[1])
    for r in reversed(taken):
        queue.put_back(r)
    assert drain(queue) == requests


def test_urgent_goes_before_early() -> None:
    queue = request_queue("priority")
    late, early, urgent = (
        request(1, arrival_time=2.0),
        request(1, arrival_time=1.0),
        request(1, arrival_time=3.0, priority=-1),
    )
    for r in (late, early, urgent):
        queue.add(r)
    assert drain(queue) == [urgent, early, late]


def test_an_id_that_left_may_come_again() -> None:
    queue = request_queue("priority")
    first = request(1, request_id="x", priority=5)
    queue.add(first)
    queue.remove(first)
    again = request(1, request_id="x", priority=9)
    queue.add(again)
    assert drain(queue) == [again]
