"""A caller's outputs: RequestOutput and its parts, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar


@dataclass(slots=True)
class Logprob:
    """One candidate at one position. `rank` counts from 1; `decoded_token` is its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# One position: token id -> Logprob, the sampled (or prompt) token first.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request; with DELTA output, only what is new since the last one."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None  # stop | length | repetition | abort | error
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether this choice is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, seconds of the monotonic clock."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """One request's output for its caller."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    metrics: RequestMetrics | None = None
    lora_request: None = field(default=None)


@dataclass(slots=True)
class PoolingOutput:
    """The vector of a prompt."""

    data: Any  # a torch tensor, float32: [N], or [T, N] with a vector for each token


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The vector's length."""
        return len(self.embedding)


Pooled = TypeVar("Pooled")


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """The result of one pooling request."""

    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    num_cached_tokens: int | None
    finished: bool
    # The cause if there is no vector.
    error: str | None = None


@dataclass(slots=True)
class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A PoolingRequestOutput with a list of numbers."""

    @staticmethod
    def from_base(base: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        """The same output with its tensor as a list."""
        embedding = EmbeddingOutput(base.outputs.data.tolist())
        ids, num_cached = base.prompt_token_ids, base.num_cached_tokens
        return EmbeddingRequestOutput(base.request_id, embedding, ids, num_cached, base.finished)


# The output of any request.
AnyOutput = RequestOutput | PoolingRequestOutput[PoolingOutput]
