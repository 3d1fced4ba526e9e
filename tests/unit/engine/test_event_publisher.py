"""Events of the prefix cache, as a router would read them from the socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from tests.builders import core_config, message
from tests.fakes import ScriptedExecutor
from vllm_lite.config.kv_events import KVEventsConfig
from vllm_lite.core.block_events import AllBlocksCleared, BlockEvents
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.core.event_publisher import EventPublisher
from vllm_lite.errors import UsageError


@pytest.fixture
def endpoints(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


@pytest.fixture
def publisher(endpoints: tuple[str, str]) -> Iterator[EventPublisher]:
    events, replay = endpoints
    made = EventPublisher(
        KVEventsConfig(
            enable_kv_cache_events=True,
            endpoint=events,
            replay_endpoint=replay,
            topic="kv",
            buffer_steps=3,
        )
    )
    yield made
    made.shutdown()


def listen(endpoint: str, kind: int) -> Any:
    socket = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    if kind == zmq.SUB:
        socket.subscribe("kv")
    socket.connect(endpoint)
    return socket


def test_batches_come_in_vllm_s_form_and_missed_ones_again(
    publisher: EventPublisher, endpoints: tuple[str, str]
) -> None:
    listener = listen(endpoints[0], zmq.SUB)
    time.sleep(0.3)  # a subscription takes a moment
    events = BlockEvents()
    chain = [bytes([i]) * 32 for i in (1, 2, 3)]
    events.stored(chain, 1, 3, list(range(12)), 4)
    events.removed(chain[0])
    events.removed(chain[0] + b"\x01\x00")  # of another group
    publisher.publish(events.take())
    publisher.publish([AllBlocksCleared()])
    topic, number, payload = listener.recv_multipart()
    assert (topic, int.from_bytes(number, "big")) == (b"kv", 0)
    ts, told, rank = msgspec.msgpack.decode(payload)
    hashes = [int.from_bytes(bytes([i]) * 8, "big") for i in (1, 2, 3)]
    assert abs(ts - time.time()) < 60 and rank == 0
    assert told == [
        ["BlockStored", hashes[1:], hashes[0], list(range(4, 12)), 4, None, "GPU"],
        ["BlockRemoved", hashes[:1], "GPU"],
    ]
    assert msgspec.msgpack.decode(listener.recv_multipart()[2])[1] == [["AllBlocksCleared"]]
    for _ in range(3):
        publisher.publish([AllBlocksCleared()])
        listener.recv_multipart()
    again = listen(endpoints[1], zmq.REQ)
    again.send((3).to_bytes(8, "big"))
    # A REQ socket strips the empty frame, and takes one reply.
    assert [int.from_bytes(frame, "big") for frame in again.recv_multipart()[:1]] == [3]
    listener.close(0)
    again.close(0)


def test_an_engine_core_tells_what_it_caches(endpoints: tuple[str, str]) -> None:
    config = core_config(enable_kv_cache_events=True, endpoint=endpoints[0], topic="kv")
    core = EngineCore(config, lambda config: ScriptedExecutor())
    listener = listen(endpoints[0], zmq.SUB)
    time.sleep(0.3)
    prompt = list(range(20))
    core.add_requests([message(prompt, max_tokens=2, request_id="a")])
    while core.has_work():
        core.step()
    assert core.reset_prefix_cache()
    (name, _, parent, tokens, size, *_), *others = msgspec.msgpack.decode(
        listener.recv_multipart()[2]
    )[1]
    assert (name, parent, tokens, size, others) == ("BlockStored", None, prompt[:16], 8, [])
    assert msgspec.msgpack.decode(listener.recv_multipart()[2])[1] == [["AllBlocksCleared"]]
    core.shutdown()
    listener.close(0)


def test_an_endpoint_that_is_taken_is_named(tmp_path: Path) -> None:
    taken = zmq.Context.instance().socket(zmq.PUB)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{port}")
    with pytest.raises(UsageError, match=f"--kv-events-config: tcp://\\*:{port}.*choose"):
        EventPublisher(config)
    taken.close(0)


def test_a_publisher_without_events_is_refused() -> None:
    with pytest.raises(UsageError, match="set enable_kv_cache_events"):
        KVEventsConfig(publisher="zmq")
    assert not KVEventsConfig(enable_kv_cache_events=True, publisher="null").is_on
