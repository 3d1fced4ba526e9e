"""The store is bounded in number, size and age, and separate for each owner."""

from __future__ import annotations

import asyncio

import pytest

from vllm_lite.errors import NotFoundError, RequestError
from vllm_lite.server.openai.responses import store as responses_store
from vllm_lite.server.openai.responses.store import EventLog, ResponseStore, StoredResponse


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(name: str, text: str = "", events: EventLog | None = None) -> StoredResponse:
    output = [{"id": f"{name}-item", "text": text}]
    return StoredResponse(name, "me", {"output": output}, [], events=events)


def stored(store: ResponseStore, one: StoredResponse) -> StoredResponse:
    store.add(one)
    store.finish(one)
    return one


def test_the_least_lately_used_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_RESPONSES", 2)
    store = ResponseStore()
    stored(store, entry("a"))
    stored(store, entry("b"))
    store.get("a", "me")
    stored(store, entry("c"))
    with pytest.raises(NotFoundError):
        store.get("b", "me")
    assert (store.get("a", "me").id, store.get("c", "me").id, len(store)) == ("a", "c", 2)


def test_an_item_lives_as_long_as_a_response_that_has_it() -> None:
    store = ResponseStore()
    first = stored(store, entry("a", "x"))
    assert store.item("a-item", "me") == {"id": "a-item", "text": "x"}
    assert store.item("a-item", "you") is None and store.item("b-item", "me") is None
    running = entry("b")
    store.add(running)
    assert store.item("b-item", "me") is None
    store.remove(first)
    store.remove(running)
    assert store.item("a-item", "me") is None and store._holders == {}


def test_bytes_are_counted_with_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_BYTES", 3200)
    store = ResponseStore()
    stored(store, entry("a", "x" * 900))
    stored(store, entry("b", "x" * 900))
    assert len(store) == 2
    log = EventLog(keep=True)
    log.add({"type": "t", "text": "x" * 2000})
    stored(store, entry("c", "", log))
    assert [name for name in "abc" if _has(store, name)] == ["b", "c"]
    stored(store, entry("huge", "x" * 5000))
    assert len(store) == 0
    stored(store, entry("d"))
    assert len(store) == 1


def _has(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name, "me")
    except NotFoundError:
        return False
    return True


def test_running_responses_are_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_RESPONSES", 1)
    clock = Clock()
    store = ResponseStore(clock)
    running = entry("running")
    store.add(running)
    for name in "abc":
        stored(store, entry(name))
    clock.now = 10 * responses_store.MAX_AGE
    assert store.get("running", "me") is running
    assert len(store) == 1


def test_entries_grow_old() -> None:
    clock = Clock()
    store = ResponseStore(clock)
    stored(store, entry("a"))
    clock.now = responses_store.MAX_AGE
    assert store.get("a", "me")
    clock.now += 1
    with pytest.raises(NotFoundError):
        store.get("a", "me")


def test_entry_belongs_to_its_owner_and_its_id_is_unique() -> None:
    store = ResponseStore()
    one = stored(store, entry("a"))
    with pytest.raises(NotFoundError):
        store.get("a", "you")
    with pytest.raises(RequestError, match="stored already"):
        store.add(entry("a"))
    store.remove(one)
    store.remove(one)
    store.finish(one)
    assert len(store) == 0


async def test_readers_of_a_log_each_get_every_event() -> None:
    log = EventLog(keep=True)
    log.add({"type": "one"})

    async def read(after: int) -> list[bytes]:
        return [event async for event in log.read(after)]

    readers = [asyncio.create_task(read(after)) for after in (-1, 0, 5)]
    await asyncio.sleep(0)
    log.add({"type": "two"})
    log.close()
    every, rest, none = await asyncio.gather(*readers)
    assert (len(every), every[1:], none) == (2, rest, [])
    assert every[1] == b'event: two\ndata: {"type":"two","sequence_number":1}\n\n'
