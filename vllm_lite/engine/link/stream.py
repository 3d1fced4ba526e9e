"""Whole messages over one end of a Unix socket pair; sending never blocks.

What the kernel does not take at once is sent by a thread, which ends with it: a peer in the middle
of a long step delays nobody. Queues are unbounded because admission bounds them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections import deque
from itertools import islice

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 16
# Of the parts that one system call sends.
_MOST_PARTS = 64


class MessageStream:
    """One end. Sending and receiving each belong to one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._received = bytearray()
        # The other end is closed; messages may still lie here.
        self.has_ended = False
        self._unsent: deque[memoryview] = deque()
        # Guards what is unsent, and who sends it.
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Send or queue; dropped where the other end is closed."""
        with self._lock:
            self._unsent += (memoryview(_LENGTH.pack(len(message))), memoryview(message))
            if self._sender is None and not self._send_some():
                self._sender = threading.Thread(
                    target=self._send_rest, name="message-sender", daemon=True
                )
                self._sender.start()

    def has_message(self) -> bool:
        """Whether a whole message has come; reads what there is of it."""
        received, needed = self._received, _LENGTH.size
        while True:
            if len(received) >= _LENGTH.size:
                needed = self._end()
            if len(received) >= needed:
                return True
            try:
                part = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return False
            except ConnectionError:
                part = b""
            if not part:
                self.has_ended = True
                return False
            received += part

    def receive(self) -> bytes | None:
        """The next message; None where no whole one has come."""
        if not self.has_message():
            return None
        end = self._end()
        with memoryview(self._received) as received:
            message = bytes(received[_LENGTH.size : end])
        del self._received[:end]
        return message

    def close(self, linger: float) -> None:
        """Close, giving unsent messages `linger` seconds."""
        sender = self._sender
        if sender is not None:
            sender.join(linger)
            with self._lock:
                self._unsent.clear()
            # Wakes the thread where it waits for room.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            sender.join()
        self._socket.close()

    def _end(self) -> int:
        """The end of the first message, whose length has come."""
        length: int = _LENGTH.unpack_from(self._received)[0]
        return _LENGTH.size + length

    def _send_some(self) -> bool:
        """Send what the kernel takes; whether that is all. The lock is held."""
        unsent = self._unsent
        try:
            while unsent:
                sent = self._socket.sendmsg(list(islice(unsent, _MOST_PARTS)))
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]
        except BlockingIOError:
            return False
        except OSError:
            unsent.clear()
        return True

    def _send_rest(self) -> None:
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        while True:
            room.poll()
            with self._lock:
                if self._send_some():
                    self._sender = None
                    return
