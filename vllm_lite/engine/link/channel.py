"""A two-way message channel between two ends on one machine: two ZMQ sockets, one codec.

The front end binds in a private directory, the core connects. ZMQ's own thread moves the
bytes, so messages arrive while a step runs. Sending never blocks; queues are unbounded here
because admission bounds them earlier.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Generic, TypeVar

import zmq

from vllm_lite.engine.link.codec import Codec, core_codec, front_end_codec
from vllm_lite.engine.link.messages import FromCore, ToCore

Sent = TypeVar("Sent")
Received = TypeVar("Received")

TO_CORE, FROM_CORE = "to_core", "from_core"


def address(directory: Path, direction: str, index: int) -> str:
    """Where front end `index` binds its socket of one direction."""
    return f"ipc://{directory}/{direction}.{index}"


def wait_readable(
    socket: zmq.Socket[bytes], other_fd: int | None, timeout: float | None = None
) -> bool:
    """Wait for a message (True), for `other_fd` to be readable, or for `timeout` seconds."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    if other_fd is not None:
        poller.register(other_fd, zmq.POLLIN)
    ready = poller.poll(None if timeout is None else int(timeout * 1000))
    return any(found is socket for found, _ in ready)


class Channel(Generic[Sent, Received]):
    """One end of the channel; belongs to one thread at a time."""

    def __init__(self, codec: Codec[Sent, Received]) -> None:
        self._codec = codec
        self._context = zmq.Context(io_threads=1)
        self._outgoing = self._context.socket(zmq.PUSH)
        self._incoming = self._context.socket(zmq.PULL)
        for socket in (self._outgoing, self._incoming):
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)

    @classmethod
    def for_front_end(cls, directory: Path, index: int = 0) -> Channel[ToCore, FromCore]:
        """Bind in `directory`, which only this user may enter; each front end has its index."""
        channel = Channel(front_end_codec())
        channel._outgoing.bind(address(directory, TO_CORE, index))
        channel._incoming.bind(address(directory, FROM_CORE, index))
        return channel

    @classmethod
    def for_core(cls, directory: Path) -> Channel[FromCore, ToCore]:
        """Connect to the front end that bound in `directory`."""
        channel = Channel(core_codec())
        channel._outgoing.connect(address(directory, FROM_CORE, 0))
        channel._incoming.connect(address(directory, TO_CORE, 0))
        return channel

    @property
    def incoming_fd(self) -> int:
        """Readable when messages may have come; edge-triggered: then receive until None."""
        return int(self._incoming.getsockopt(zmq.FD))

    def encode(self, message: Sent) -> bytes:
        """The message as send_encoded() takes it."""
        return self._codec.encode(message)

    def send(self, message: Sent) -> None:
        """Queue a message for the other end; dropped where that is gone, which shows elsewhere."""
        self.send_encoded(self._codec.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """send() for a message that is encoded."""
        with contextlib.suppress(zmq.Again):
            self._outgoing.send(data, zmq.NOBLOCK)

    def receive(self, *, block: bool = False, other_fd: int | None = None) -> Received | None:
        """The next message; None where there is none yet.

        With `block` waits for it, or until `other_fd` is readable.
        """
        if block:
            wait_readable(self._incoming, other_fd)
        try:
            data = self._incoming.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self._codec.decode(data)

    def wait(self, timeout: float, *, other_fd: int | None = None) -> bool:
        """Wait until a message is there (True), `other_fd` is readable, or `timeout` seconds."""
        return wait_readable(self._incoming, other_fd, timeout)

    def wait_connected(self, timeout: float) -> bool:
        """Whether, within `timeout` seconds, the other end takes what this one sends."""
        return bool(self._outgoing.poll(int(timeout * 1000), zmq.POLLOUT))

    def close(self, linger: float = 0.0) -> None:
        """Close both sockets, giving unsent messages `linger` seconds."""
        self._outgoing.close(linger=int(linger * 1000))
        self._incoming.close(linger=0)
        self._context.term()
