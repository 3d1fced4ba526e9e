"""The streams between front ends and the engine core, and the messages' encoding: msgpack.

Each front end has a pair of Unix sockets with the core, which no other process can reach. Sending
never blocks.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, TypeVar

import msgspec

from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.link.messages import CallResult, FromCore, StepOutputs, ToCore, Undecodable
from vllm_lite.engine.link.spawn import HEARTBEAT_SIZE, heartbeat_memory
from vllm_lite.engine.link.stream import MessageStream

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
    """The streams of one end; belongs to one thread at a time."""

    def __init__(self, ends: Sequence[socket.socket], decode: Callable[[bytes], Received]) -> None:
        self._encoder = message_encoder()
        self._decode = decode
        self._streams = [MessageStream(end) for end in ends]
        # The stream whose turn it is, so that none waits for what another is full of.
        self._turn = 0

    @property
    def has_ended(self) -> bool:
        """Whether nobody is left at the other ends."""
        return all(stream.has_ended for stream in self._streams)

    def receive(self, *, block: bool = False, other_fd: int | None = None) -> Received | None:
        """The next message; None where there is none yet.

        With `block` waits for it, for the end of all streams, or until `other_fd` is readable.
        """
        if block:
            self._wait(None, other_fd)
        for _ in self._streams:
            stream = self._streams[self._turn]
            self._turn = (self._turn + 1) % len(self._streams)
            if (data := stream.receive()) is not None:
                return self._decode(data)
        return None

    def wait(self, timeout: float, *, other_fd: int | None = None) -> bool:
        """Wait until a message is there (True), `other_fd` is readable, or `timeout` seconds."""
        return self._wait(time.monotonic() + timeout, other_fd)

    def close(self, linger: float = 0.0) -> None:
        """Close all streams, giving unsent messages `linger` seconds."""
        for stream in self._streams:
            stream.close(linger)

    def _wait(self, deadline: float | None, other_fd: int | None) -> bool:
        while not self._has_message():
            if deadline is None and self.has_ended:
                return False
            poller = select.poll()
            for stream in self._streams:
                if not stream.has_ended:
                    poller.register(stream, select.POLLIN)
            if other_fd is not None:
                poller.register(other_fd, select.POLLIN)
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            readable = [descriptor for descriptor, _ in poller.poll(left)]
            if not readable or other_fd in readable:
                return self._has_message()
        return True

    def _has_message(self) -> bool:
        return any(stream.has_message() for stream in self._streams)


class FrontEndChannel(Channel[FromCore]):
    """A front end's end."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__([end], decode_from_core)

    def fileno(self) -> int:
        """Readable when messages may have come, and once the core is gone."""
        return self._streams[0].fileno()

    def encode(self, message: ToCore) -> bytes:
        return self._encoder.encode(message)

    def send(self, message: ToCore) -> None:
        """Queue a message for the core; dropped where that is gone, which shows elsewhere."""
        self.send_encoded(self._encoder.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """send() for a message that is encoded."""
        self._streams[0].send(data)


class CoreChannel(Channel[ToCore | Undecodable]):
    """The core's end, to each front end."""

    def __init__(self, ends: Sequence[socket.socket]) -> None:
        super().__init__(ends, decode_to_core)

    def send(self, message: FromCore) -> None:
        """Send outputs to their owners, an answer to its caller, anything else to everybody."""
        if isinstance(message, CallResult):
            self._send(message.front_end, message)
        elif isinstance(message, StepOutputs) and len(self._streams) > 1:
            self._send_outputs(message)
        else:
            for index in range(len(self._streams)):
                self._send(index, message)

    def _send_outputs(self, step: StepOutputs) -> None:
        parts: list[list[EngineCoreOutput]] = [[] for _ in self._streams]
        for output in step.outputs:
            parts[output.front_end].append(output)
        for index, outputs in enumerate(parts):
            # The first front end always gets the statistics: it speaks for the engine.
            if outputs or (index == 0 and step.stats is not None):
                self._send(index, StepOutputs(outputs, step.stats))

    def _send(self, index: int, message: FromCore) -> None:
        self._streams[index].send(self._encoder.encode(message))
