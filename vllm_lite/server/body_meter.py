"""Counts what decoding a body would build, in its bytes, as they come.

Knows no field. Invariant: a part takes time in proportion to its length, whatever is in it, and a
body that passes is decoded within the time that one request may hold the event loop.
"""

from __future__ import annotations

from vllm_lite.errors import RequestError
from vllm_lite.server.errors import BodyTooLargeError

MAX_BODY_BYTES = 12 << 20
# Values in lists and objects, and among them names, lists and objects, which cost more.
MAX_VALUES = 1 << 18
MAX_NAMES = 3 << 14
MAX_DEPTH = 256

_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class BodyMeter:
    """Feed it every part of one body; raises RequestError as soon as that is too much."""

    def __init__(self, context_length: int = 0) -> None:
        """A prompt of `context_length` token ids may come, however long that is."""
        self._max_values = max(MAX_VALUES, context_length + MAX_NAMES)
        self._size = self._values = self._names = self._depth = 0
        self._is_in_text = False
        # A backslash at the end of a part belongs to what comes.
        self._rest = b""

    def feed(self, part: bytes) -> None:
        """Count one part."""
        self._size += len(part)
        if self._size > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes")
        data = self._rest + part
        plain = data.replace(b"\\\\", b"")
        self._rest = b"\\" if plain.endswith(b"\\") else b""
        pieces = plain.replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[self._is_in_text :: 2])
        self._is_in_text ^= len(pieces) % 2 == 0
        brackets = outside.translate(None, _ALL_BUT_BRACKETS)
        self._values += outside.count(b",")
        self._names += outside.count(b":") + brackets.count(b"[") + brackets.count(b"{")
        self._follow(brackets)
        if self._values > self._max_values or self._names > MAX_NAMES:
            raise BodyTooLargeError(
                f"The body holds more than the {self._max_values} values that are read, or more "
                f"than {MAX_NAMES} names, lists and objects"
            )

    def _follow(self, brackets: bytes) -> None:
        """Keep count of the depth; flat stretches are taken at once."""
        for piece in brackets.replace(b"[]", b"").replace(b"{}", b""):
            self._depth += 1 if piece in b"[{" else -1
            if self._depth > MAX_DEPTH:
                raise RequestError("The body is nested too deeply")
