"""Publishes events of the prefix cache on a ZeroMQ socket, from a thread of its own.

A batch is three frames, as vLLM sends them: the topic, a number that grows by one (8 bytes,
big-endian), and msgpack of [seconds since the epoch, [event, ...], rank]. Who missed some sends the
first number it lacks to the replay socket, and gets (number, batch) for each that is kept, then
number -1.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from vllm_lite.config.kv_events import KVEventsConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.block_events import BlockEvent
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

if TYPE_CHECKING:
    import zmq

logger = init_logger(__name__)

# Seconds between two looks at the replay socket.
_REPLAY_PATIENCE = 0.05
_END = (-1).to_bytes(8, "big", signed=True)


class EventBatch(msgspec.Struct, array_like=True):
    """The events of one step."""

    ts: float
    events: list[BlockEvent]
    data_parallel_rank: int | None = None


class EventPublisher:
    """Sends batches in order; where listeners are slower than the engine, old batches are lost."""

    def __init__(self, config: KVEventsConfig) -> None:
        """Open the sockets; raises UsageError for an endpoint that cannot be opened."""
        import zmq  # few engines publish events

        self._topic = config.topic.encode()
        self._batches: queue.Queue[EventBatch | None] = queue.Queue(config.max_queue_size)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._num_dropped = 0
        self._context = zmq.Context()
        try:
            self._socket = self._open(zmq.PUB, config.endpoint, config.hwm)
            self._replay = self._open(zmq.ROUTER, config.replay_endpoint, config.hwm)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UsageError(
                f"--kv-events-config: {config.endpoint} or its replay_endpoint cannot be opened: "
                f"{error}; choose other ones"
            ) from error
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: list[BlockEvent]) -> None:
        """Queue a batch; dropped, with a warning, where the queue is full."""
        try:
            self._batches.put_nowait(EventBatch(time.time(), events, 0))
        except queue.Full:
            self._num_dropped += 1
            if self._num_dropped & (self._num_dropped - 1) == 0:
                logger.warning(
                    "%d batches of KV events were dropped; raise max_queue_size of "
                    "--kv-events-config",
                    self._num_dropped,
                )

    def shutdown(self) -> None:
        """Send what is queued, and close the sockets."""
        self._batches.put(None)
        self._thread.join(5)
        self._context.destroy(linger=100)

    def _open(self, kind: int, endpoint: str | None, high_water: int) -> zmq.Socket[bytes] | None:
        if endpoint is None:
            return None
        opened = self._context.socket(kind)
        opened.set_hwm(high_water)
        # A router elsewhere is connected to; an address of this machine is bound.
        if any(part in endpoint for part in ("*", "::", "ipc://", "inproc://")):
            opened.bind(endpoint)
        else:
            opened.connect(endpoint)
        return opened

    def _run(self) -> None:
        encode = msgspec.msgpack.Encoder().encode
        number = 0
        while True:
            if self._replay is not None and self._replay.poll(0):
                self._answer_replay(self._replay)
            # Without a replay socket there is nothing else to look at.
            patience = None if self._replay is None else _REPLAY_PATIENCE
            try:
                batch = self._batches.get(timeout=patience)
            except queue.Empty:
                continue
            if batch is None:
                return
            frames = number.to_bytes(8, "big"), encode(batch)
            self._kept.append(frames)
            assert self._socket is not None
            self._socket.send_multipart((self._topic, *frames))
            number += 1

    def _answer_replay(self, replay: zmq.Socket[bytes]) -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning("KV events: a replay request has to be one frame of 8 bytes")
            return
        client, first = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._kept:
            if int.from_bytes(number, "big") >= first:
                replay.send_multipart((client, b"", number, payload))
        replay.send_multipart((client, b"", _END, b""))


def make_publisher(config: VllmConfig) -> EventPublisher | None:
    """The publisher that --kv-events-config asks for, if it does."""
    if not config.kv_events.is_on:
        return None
    if not config.cache.enable_prefix_caching:
        logger.warning("--kv-events-config: without prefix caching there are no events")
    return EventPublisher(config.kv_events)
