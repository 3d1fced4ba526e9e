"""Messages to bytes and back: msgpack with types checked on arrival, never pickle.

A `Codec` is bound to one direction; its encoder keeps a buffer, so use one per thread.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from vllm_lite.engine.link.messages import FromCore, ToCore, Undecodable

Sent = TypeVar("Sent")
Received = TypeVar("Received")


def message_encoder() -> msgspec.msgpack.Encoder:
    """An encoder that takes subclasses of plain types, such as numpy's numbers, for those."""
    return msgspec.msgpack.Encoder(enc_hook=_plain)


def _plain(value: object) -> object:
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


class Codec(Generic[Sent, Received]):
    """Encodes what this side sends and decodes what it receives."""

    def __init__(self, received: object) -> None:
        self._encoder = message_encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)

    def encode(self, message: Sent) -> bytes:
        """The message as msgpack."""
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> Received:
        """The message in `data`; msgspec.DecodeError where it is none of ours."""
        return self._decoder.decode(data)


def front_end_codec() -> Codec[ToCore, FromCore]:
    """For the process that has the users."""
    return Codec(FromCore)


class CoreCodec(Codec[FromCore, ToCore]):
    """The core's: what it cannot read ends the request that sent it, and nothing else."""

    def decode(self, data: bytes) -> ToCore:
        """The message in `data`, or an Undecodable that says whom it would have served."""
        try:
            return super().decode(data)
        except msgspec.DecodeError as error:
            return _undecodable(data, str(error))


def core_codec() -> CoreCodec:
    """For the process that has the model."""
    return CoreCodec(ToCore)


def _undecodable(data: bytes, reason: str) -> Undecodable:
    try:
        plain = msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        plain = None
    if not isinstance(plain, dict):
        return Undecodable(reason)
    requests = plain.get("requests") if plain.get("type") == "add" else None
    ids = [entry.get("request_id") for entry in requests or () if isinstance(entry, dict)]
    call_id = plain.get("call_id")
    return Undecodable(
        reason,
        [one for one in ids if isinstance(one, str)],
        call_id if isinstance(call_id, int) else None,
    )
