"""Several front ends of one engine core: who they are, and whose is what the core sends.

A sequence's id ends in its front end's index and a call's id leaves it as a remainder, so the
core keeps no book about them. Knows no request.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq

from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.link.channel import FROM_CORE, TO_CORE, Channel, address, wait_readable
from vllm_lite.engine.link.codec import core_codec
from vllm_lite.engine.link.messages import CoreFailed, CoreReady, FromCore, StepOutputs, ToCore


@dataclass(frozen=True, slots=True)
class FrontEndSeat:
    """Which of how many front ends one is."""

    index: int = 0
    count: int = 1

    def sequence_id(self, request_id: str) -> str:
        """An id for the core that no other request has, whatever callers call theirs."""
        return f"{request_id}-{uuid.uuid4().hex[:8]}.{self.index}"

    def call_ids(self) -> Iterator[int]:
        """Ids for calls; no other front end has one of them."""
        return itertools.count(self.index, self.count)


class CoreChannel(Protocol):
    """The core's end of what connects it to those it works for."""

    def send(self, message: FromCore) -> None:
        """Queue a message for whom it concerns."""
        ...

    def receive(self, *, block: bool = False, other_fd: int | None = None) -> ToCore | None:
        """The next message; None where there is none yet.

        With `block` waits for it, or until `other_fd` is readable.
        """
        ...

    def close(self, linger: float = 0.0) -> None:
        """Close, giving unsent messages `linger` seconds."""
        ...


class FrontEnds:
    """The channels to several front ends; they connect whenever they like."""

    def __init__(self, directory: Path, count: int) -> None:
        self._codec = core_codec()
        self._context = zmq.Context(io_threads=1)
        self._incoming = self._context.socket(zmq.PULL)
        self._outgoing = [self._context.socket(zmq.PUSH) for _ in range(count)]
        for socket in (self._incoming, *self._outgoing):
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
        for index, socket in enumerate(self._outgoing):
            self._incoming.connect(address(directory, TO_CORE, index))
            socket.connect(address(directory, FROM_CORE, index))

    def send(self, message: FromCore) -> None:
        """A step's outputs to their owners, an answer to who asked, the rest to everybody."""
        if isinstance(message, StepOutputs):
            self._send_outputs(message)
        elif isinstance(message, CoreReady | CoreFailed):
            for index in range(len(self._outgoing)):
                self._send(index, message)
        else:
            self._send(message.call_id % len(self._outgoing), message)

    def receive(self, *, block: bool = False, other_fd: int | None = None) -> ToCore | None:
        """The next message of any front end."""
        if block:
            wait_readable(self._incoming, other_fd)
        try:
            return self._codec.decode(self._incoming.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def close(self, linger: float = 0.0) -> None:
        """Close all sockets, giving unsent messages `linger` seconds."""
        for socket in self._outgoing:
            socket.close(linger=int(linger * 1000))
        self._incoming.close(linger=0)
        self._context.term()

    def _send_outputs(self, step: StepOutputs) -> None:
        parts: list[list[EngineCoreOutput]] = [[] for _ in self._outgoing]
        for output in step.outputs:
            parts[int(output.request_id.rpartition(".")[2])].append(output)
        for index, outputs in enumerate(parts):
            # The first front end speaks for the engine: it always hears how that stands.
            if outputs or (index == 0 and step.stats is not None):
                self._send(index, StepOutputs(outputs, step.stats))

    def _send(self, index: int, message: FromCore) -> None:
        self._outgoing[index].send(self._codec.encode(message), zmq.NOBLOCK)


def channel_of_core(directory: Path, num_front_ends: int) -> CoreChannel:
    """The core's end, to one front end or to several."""
    if num_front_ends == 1:
        return Channel.for_core(directory)
    return FrontEnds(directory, num_front_ends)
