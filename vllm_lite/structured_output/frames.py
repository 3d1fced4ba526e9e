"""Messages between the engine core and its compile processes: length-prefixed msgpack.

Plain pipes and plain data. Knows no grammar.
"""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from vllm_lite.structured_output.grammar import Refusal
from vllm_lite.structured_outputs_params import StructuredOutputsParams

# Processor seconds for one constraint.
MAX_COMPILE_SECONDS = 15.0
_LENGTH = struct.Struct("<Q")


class Job(msgspec.Struct):
    """Compile a canonical constraint."""

    params: StructuredOutputsParams
    # The engine that comes first was lost over it.
    by_guidance: bool = False


class Hello(msgspec.Struct):
    """The tokenizer as a compile process describes it, once."""

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]
    # (start, end) of the reasoning parser's marks, and the tokens that write them.
    markers: tuple[bytes, bytes] | None = None
    marker_ids: tuple[list[int], list[int]] | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """A compiled grammar, or why there is none."""

    engine: str = ""
    payload: bytes = b""
    refusal: Refusal | None = None


def write_frame(stream: IO[bytes], message: object) -> None:
    """Send one message."""
    data = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """One message's bytes; None where the other end is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None
