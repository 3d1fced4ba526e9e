"""Messages between an executor and its ranks: msgpack with types checked on arrival."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.executor.commands import Command

# Bytes of a report at most: it is written to a pipe at once.
MAX_REPORT: Final = 3000


class RankJob(msgspec.Struct):
    """A rank's configuration, on its standard input."""

    size: int
    config: VllmConfig


class RunStep(msgspec.Struct, tag=True):
    """A step. All ranks run it, the first answers."""

    step: SchedulerOutput


class Report(msgspec.Struct):
    """Why a rank ends: the exception's type and text."""

    rank: int
    kind: str
    message: str


_ENCODER = msgspec.msgpack.Encoder(enc_hook=memoryview)
_DECODER = msgspec.msgpack.Decoder(RunStep | Command)


def encode(message: Any) -> bytes:
    """Encode a message or an answer."""
    return _ENCODER.encode(message)


def decode(data: bytes) -> RunStep | Command:
    """The step or command in a message to a rank."""
    message: RunStep | Command = _DECODER.decode(data)
    if isinstance(message, RunStep) and message.step.token_masks is not None:
        masks = message.step.token_masks
        words = np.frombuffer(bytearray(masks.bits), np.int32)
        masks.bits = words.reshape(len(masks.request_ids), -1)
    return message
