"""Messages to bytes and back: msgpack with types checked on arrival, never pickle.

A `Codec` is bound to one direction; its encoder keeps a buffer, so use one per thread.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from vllm_lite.engine.messages import FromCore, ToCore

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Codec(Generic[Sent, Received]):
    """Encodes what this side sends and decodes what it receives."""

    def __init__(self, received: object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)

    def encode(self, message: Sent) -> bytes:
        """The message as msgpack."""
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> Received:
        """The message in `data`; msgspec.ValidationError where it is none of ours."""
        return self._decoder.decode(data)


def front_end_codec() -> Codec[ToCore, FromCore]:
    """For the process that has the users."""
    return Codec(FromCore)


def core_codec() -> Codec[FromCore, ToCore]:
    """For the process that has the model."""
    return Codec(ToCore)
