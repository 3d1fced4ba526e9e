"""vLLM's BeamSearchParams, and the output of a beam search for Python callers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from vllm_lite.errors import RequestError
from vllm_lite.outputs import PositionLogprobs

MAX_BEAM_WIDTH = 64


class BeamSearchParams(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """See vLLM's BeamSearchParams; field names are the same.

    `temperature` is accepted and changes nothing: continuations are compared by what the model
    says of them. Raises RequestError that names the field.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            raise RequestError(
                f"the beam width must be in [1, {MAX_BEAM_WIDTH}], got {self.beam_width}", "n"
            )
        if self.max_tokens < 1:
            raise RequestError(
                f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens"
            )
        if not (math.isfinite(self.length_penalty) and abs(self.length_penalty) <= 10):
            raise RequestError(
                f"length_penalty must be in [-10, 10], got {self.length_penalty}", "length_penalty"
            )


@dataclass(slots=True)
class BeamSearchSequence:
    """A continuation with its prompt: `tokens` and `text` begin with the prompt's."""

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float
    text: str | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best continuations of one prompt, the best one first."""

    sequences: list[BeamSearchSequence]
