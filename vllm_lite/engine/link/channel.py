"""The sockets between front ends and the engine core, and the messages' encoding: msgpack.

Each front end binds two ZMQ sockets in a private directory, the core connects to all. ZMQ's own
thread moves the bytes, so messages arrive while a step runs. Sending never blocks; queues are
unbounded because admission bounds them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq

from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.link.messages import (
    CallResult,
    FromCore,
    StepOutputs,
    ToCore,
    Undecodable,
)
from vllm_lite.engine.link.spawn import HEARTBEAT_SIZE, heartbeat_memory

Received = TypeVar("Received")


class Heartbeat:
    """A step's start time in memory that both processes map."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, HEARTBEAT_SIZE)
        # Aligned 8-byte stores: a reader never sees half a number.
        self._stamp = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> Heartbeat:
        """New memory; hand `fd` to the process that stamps."""
        return cls(heartbeat_memory())

    def begin_step(self) -> None:
        self._stamp[0] = time.monotonic_ns()

    def end_step(self) -> None:
        self._stamp[0] = 0

    def expect_step(self) -> None:
        """Stamp from a front end's side: a message is about to wake the core.

        The core stamps over it; one that never wakes counts as stuck.
        """
        if not self._stamp[0]:
            self.begin_step()

    @property
    def stamp(self) -> int:
        """The start of the current step in nanoseconds; 0 where none runs."""
        return self._stamp[0]

    @property
    def step_limit(self) -> float:
        """Processor seconds that a step may use; 0 where none are set."""
        return self._stamp[1] / 1e9

    @step_limit.setter
    def step_limit(self, seconds: float) -> None:
        self._stamp[1] = int(seconds * 1e9)

    def close(self) -> None:
        """Unmap; the other process keeps its own mapping."""
        self._stamp.release()
        self._map.close()
        os.close(self.fd)


def message_encoder() -> msgspec.msgpack.Encoder:
    """An encoder that takes subclasses of plain types, such as numpy's numbers, for those.

    It keeps a buffer: use one per thread.
    """
    return msgspec.msgpack.Encoder(enc_hook=_plain)


def _plain(value: object) -> object:
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


@cache
def _decoder(kind: object) -> Callable[[bytes], object]:
    return msgspec.msgpack.Decoder(kind).decode


def decode_from_core(data: bytes) -> FromCore:
    """The core's message in `data`; raises msgspec.DecodeError."""
    return _decoder(FromCore)(data)  # type: ignore[return-value]


def decode_to_core(data: bytes) -> ToCore | Undecodable:
    """The front end's message in `data`, an Undecodable where it cannot be read."""
    try:
        return _decoder(ToCore)(data)  # type: ignore[return-value]
    except msgspec.DecodeError as error:
        return _undecodable(data, str(error))


def _undecodable(data: bytes, reason: str) -> Undecodable:
    try:
        plain = msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        plain = None
    if not isinstance(plain, dict):
        return Undecodable(reason)
    requests = plain.get("requests") if plain.get("type") == "add" else None
    entries = [entry for entry in requests or () if isinstance(entry, dict)]
    ids = [entry.get("request_id") for entry in entries]
    call_id = plain.get("call_id")
    front_end = (entries[0] if entries else plain).get("front_end", 0)
    return Undecodable(
        reason,
        [one for one in ids if isinstance(one, str)],
        call_id if isinstance(call_id, int) else None,
        front_end if isinstance(front_end, int) else 0,
    )


class Channel(Generic[Received]):
    """The sockets of one end; belongs to one thread at a time."""

    def __init__(self, decode: Callable[[bytes], Received], num_outgoing: int = 1) -> None:
        self._encoder = message_encoder()
        self._decode = decode
        self._context = zmq.Context(io_threads=1)
        self._outgoing = [self._context.socket(zmq.PUSH) for _ in range(num_outgoing)]
        self._incoming = self._context.socket(zmq.PULL)
        for socket in (self._incoming, *self._outgoing):
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)

    def receive(self, *, block: bool = False, other_fd: int | None = None) -> Received | None:
        """The next message; None where there is none yet.

        With `block` waits for it, or until `other_fd` is readable.
        """
        if block:
            self._poll(None, other_fd)
        try:
            data = self._incoming.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self._decode(data)

    def wait(self, timeout: float, *, other_fd: int | None = None) -> bool:
        """Wait until a message is there (True), `other_fd` is readable, or `timeout` seconds."""
        return self._poll(int(timeout * 1000), other_fd)

    def close(self, linger: float = 0.0) -> None:
        """Close all sockets, giving unsent messages `linger` seconds."""
        for socket in self._outgoing:
            socket.close(linger=int(linger * 1000))
        self._incoming.close(linger=0)
        self._context.term()

    def _poll(self, milliseconds: int | None, other_fd: int | None) -> bool:
        poller = zmq.Poller()
        poller.register(self._incoming, zmq.POLLIN)
        if other_fd is not None:
            poller.register(other_fd, zmq.POLLIN)
        return any(found is self._incoming for found, _ in poller.poll(milliseconds))


class FrontEndChannel(Channel[FromCore]):
    """The end of front end `index`, which binds in a directory that only its user may enter."""

    def __init__(self, directory: Path, index: int = 0) -> None:
        super().__init__(decode_from_core)
        self._outgoing[0].bind(_address(directory, "to_core", index))
        self._incoming.bind(_address(directory, "from_core", index))

    @property
    def incoming_fd(self) -> int:
        """Readable when messages may have come; edge-triggered: then receive until None."""
        return int(self._incoming.getsockopt(zmq.FD))

    def encode(self, message: ToCore) -> bytes:
        return self._encoder.encode(message)

    def send(self, message: ToCore) -> None:
        """Queue a message for the core; dropped where that is gone, which shows elsewhere."""
        self.send_encoded(self._encoder.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """send() for a message that is encoded."""
        with contextlib.suppress(zmq.Again):
            self._outgoing[0].send(data, zmq.NOBLOCK)

    def wait_connected(self, timeout: float) -> bool:
        """Whether, within `timeout` seconds, the core takes messages."""
        return bool(self._outgoing[0].poll(int(timeout * 1000), zmq.POLLOUT))


class CoreChannel(Channel[ToCore | Undecodable]):
    """The core's end, to one front end or several, which connect whenever they like."""

    def __init__(self, directory: Path, num_front_ends: int = 1) -> None:
        super().__init__(decode_to_core, num_front_ends)
        for index, socket in enumerate(self._outgoing):
            socket.connect(_address(directory, "from_core", index))
            self._incoming.connect(_address(directory, "to_core", index))

    def send(self, message: FromCore) -> None:
        """Send outputs to their owners, an answer to its caller, anything else to everybody."""
        if isinstance(message, CallResult):
            self._send(message.front_end, message)
        elif isinstance(message, StepOutputs) and len(self._outgoing) > 1:
            self._send_outputs(message)
        else:
            for index in range(len(self._outgoing)):
                self._send(index, message)

    def _send_outputs(self, step: StepOutputs) -> None:
        parts: list[list[EngineCoreOutput]] = [[] for _ in self._outgoing]
        for output in step.outputs:
            parts[output.front_end].append(output)
        for index, outputs in enumerate(parts):
            # The first front end always gets the statistics: it speaks for the engine.
            if outputs or (index == 0 and step.stats is not None):
                self._send(index, StepOutputs(outputs, step.stats))

    def _send(self, index: int, message: FromCore) -> None:
        with contextlib.suppress(zmq.Again):
            self._outgoing[index].send(self._encoder.encode(message), zmq.NOBLOCK)


def _address(directory: Path, direction: str, index: int) -> str:
    return f"ipc://{directory}/{direction}.{index}"
