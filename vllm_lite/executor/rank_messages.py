"""Messages between an executor and its ranks: msgpack with types checked on arrival."""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any, Final, get_type_hints

import msgspec
import numpy as np

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.worker.interface import StepWorker

# Bytes of a report at most: it is written to a pipe at once.
MAX_REPORT: Final = 3000


class RankJob(msgspec.Struct):
    """A rank's configuration, on its standard input."""

    size: int
    config: VllmConfig


class RunStep(msgspec.Struct, tag=True):
    """A step. All ranks run it, the first answers."""

    step: SchedulerOutput


class CallMethod(msgspec.Struct, tag=True):
    """A call of a StepWorker's method. All ranks run it and answer."""

    name: str
    # A tuple of the types that the method takes.
    args: msgspec.Raw

    @classmethod
    def of(cls, method: Callable[..., Any], args: tuple[Any, ...]) -> CallMethod:
        return cls(method.__name__, msgspec.Raw(encode(args)))

    def run(self, worker: StepWorker) -> Any:
        kinds = get_type_hints(getattr(StepWorker, self.name))
        del kinds["return"]
        taken = GenericAlias(tuple, tuple(kinds.values()))
        return getattr(worker, self.name)(*msgspec.msgpack.decode(self.args, type=taken))


def read_answer(method: Callable[..., Any], data: bytes) -> Any:
    """The answer of `method` in a rank's message."""
    return msgspec.msgpack.decode(data, type=get_type_hints(method)["return"])


class Report(msgspec.Struct):
    """Why a rank ends: the exception's type and text."""

    rank: int
    kind: str
    message: str


_ENCODER = msgspec.msgpack.Encoder(enc_hook=memoryview)
_DECODER = msgspec.msgpack.Decoder(RunStep | CallMethod)


def encode(message: Any) -> bytes:
    """Encode a message or an answer."""
    return _ENCODER.encode(message)


def decode(data: bytes) -> RunStep | CallMethod:
    """The step or call in a message to a rank."""
    message: RunStep | CallMethod = _DECODER.decode(data)
    if isinstance(message, RunStep) and message.step.token_masks is not None:
        masks = message.step.token_masks
        words = np.frombuffer(bytearray(masks.bits), np.int32)
        masks.bits = words.reshape(len(masks.request_ids), -1)
    return message
