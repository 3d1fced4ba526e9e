"""A caller's outputs: RequestOutput and its parts, as plain data."""

from __future__ import annotations

from collections.abc import Callable
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
class RequestSpecDecodeMetrics:
    """Drafts of one choice, by the steps that verified any."""

    # Most drafts of a step by the options; a grammar may dictate more.
    num_spec_tokens: int
    # By the drafts of a step: in how many such steps none came true, in how many one, and so on.
    accepted_of: dict[int, list[int]] = field(default_factory=dict)
    # Drafts of each step, and those that came true; None unless they are kept.
    steps: list[tuple[int, int]] | None = None

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Count a step."""
        self.accepted_of.setdefault(num_drafts, [0] * (num_drafts + 1))[num_accepted] += 1
        if self.steps is not None:
            self.steps.append((num_drafts, num_accepted))

    def to_dict(self) -> dict[str, Any]:
        """The counts, and what follows from them, by vLLM's names."""
        rows = dict(sorted(self.accepted_of.items()))
        histogram = [0] * (1 + max(self.num_spec_tokens, *rows, 0))
        for row in rows.values():
            for accepted, count in enumerate(row):
                histogram[accepted] += count
        num_steps = sum(histogram)
        num_drafts = sum(length * sum(row) for length, row in rows.items())
        num_accepted = sum(accepted * count for accepted, count in enumerate(histogram))
        told: dict[str, Any] = {
            "mean_acceptance_length": 1 + num_accepted / num_steps if num_steps else 1.0,
            "draft_acceptance_rate": num_accepted / num_drafts if num_drafts else 0.0,
            "acceptance_histogram": histogram,
            "acceptance_histogram_by_draft_length": {str(k): row for k, row in rows.items()},
            "num_spec_steps": num_steps,
            "num_accepted_draft_tokens": num_accepted,
            "num_draft_tokens": num_drafts,
            "num_spec_tokens": self.num_spec_tokens,
        }
        if self.steps is not None:
            told["per_step_accepted"] = [accepted for _, accepted in self.steps]
            told["per_step_drafted"] = [drafts for drafts, _ in self.steps]
        return told


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
    # Of all tokens so far, where --per-request-spec-decode-metrics counts them.
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None

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


class PoolingOutput:
    """The answer to a prompt: [N] numbers, or [T, N] with a row for each token that has one."""

    __slots__ = ("_data", "_tensor_of", "numbers", "shape")

    def __init__(
        self, numbers: bytes, shape: tuple[int, ...], tensor_of: Callable[[PoolingOutput], Any]
    ) -> None:
        """`numbers` are float32; `tensor_of` makes `data`, for those who ask for it."""
        self.numbers = numbers
        self.shape = shape
        self._tensor_of = tensor_of
        self._data: Any = None

    @property
    def data(self) -> Any:
        """A torch tensor, float32."""
        if self._data is None:
            self._data = self._tensor_of(self)
        return self._data

    def as_array(self) -> Any:
        """A numpy array, float32."""
        import numpy as np  # here: who takes lists or a tensor needs none

        return np.frombuffer(self.numbers, np.float32).reshape(self.shape)

    def tolist(self) -> list[Any]:
        """The numbers, row by row where there are several rows."""
        flat = memoryview(self.numbers).cast("f")
        if len(self.shape) == 1:
            return flat.tolist()
        count, width = self.shape
        return [flat[i * width : (i + 1) * width].tolist() for i in range(count)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PoolingOutput):
            return NotImplemented
        return (self.shape, self.numbers) == (other.shape, other.numbers)

    def __repr__(self) -> str:
        return f"PoolingOutput(data={self.data})"


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The vector's length."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """The probabilities of a prompt's classes."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """The score of a pair of texts."""

    score: float


Pooled = TypeVar("Pooled")
Kind = TypeVar("Kind", bound="PoolingRequestOutput[Any]")


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """The result of one pooling request."""

    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    num_cached_tokens: int | None
    finished: bool
    # The cause if there is no answer.
    error: str | None = None

    def as_kind(self, kind: type[Kind], outputs: object) -> Kind:
        """The same request with its answer as `outputs`."""
        ids, num_cached = self.prompt_token_ids, self.num_cached_tokens
        return kind(self.request_id, outputs, ids, num_cached, self.finished, self.error)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A PoolingRequestOutput with a vector as a list."""

    __slots__ = ()

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        """The same output with its vector as a list."""
        return base.as_kind(cls, EmbeddingOutput(base.outputs.tolist()))


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A PoolingRequestOutput with probabilities as a list."""

    __slots__ = ()

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ClassificationRequestOutput:
        """The same output with its probabilities as a list."""
        return base.as_kind(cls, ClassificationOutput(base.outputs.tolist()))


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A PoolingRequestOutput with a score."""

    __slots__ = ()

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ScoringRequestOutput:
        """The same output, of one number, with it as the score."""
        numbers = memoryview(base.outputs.numbers).cast("f").tolist()
        return base.as_kind(cls, ScoringOutput(numbers[0] if numbers else 0.0))


# The output of any request.
AnyOutput = RequestOutput | PoolingRequestOutput[PoolingOutput]
