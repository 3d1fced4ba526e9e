"""Before a request is sent: limits of the queue, its constraint, and its sequences.

Invariant: requests that were admitted but have not begun count as waiting, so that many at once
cannot pass where one after another could not.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable

from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.core.step import EngineCoreRequest, Task
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.errors import QueueFullError, RequestError, UnavailableError
from vllm_lite.metrics.board import Board, Column
from vllm_lite.metrics.engine_metrics import EngineMetrics, NoMetrics
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.canonical import name_of
from vllm_lite.structured_output.grammar import Refusal

MAX_REMEMBERED = 4096
_SEEDS = 1 << 64


class Place:
    """A place in the queue; given back by `leave`, or with the last reference to it."""

    def __init__(self, admission: Admission, num_sequences: int, num_tokens: int) -> None:
        self._admission: Admission | None = admission
        self._size = (num_sequences, num_tokens)
        admission.change(*self._size)

    def leave(self) -> None:
        """The request has begun, and counts by itself; calling it again does nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            num_sequences, num_tokens = self._size
            admission.change(-num_sequences, -num_tokens)

    def __del__(self) -> None:
        self.leave()


class Admission:
    """Admits requests while the queue is short; those that can run at once never count."""

    def __init__(
        self,
        limits: SchedulerConfig,
        metrics: EngineMetrics | NoMetrics,
        board: Board | None = None,
    ) -> None:
        self._limits = limits
        self._metrics = metrics
        # Shows what other front ends of the same engine have admitted.
        self._board = board or Board()
        # Of admitted requests that have not begun.
        self._num_sequences = 0
        self._num_tokens = 0
        # Of those that have.
        self._num_unfinished = 0
        self._num_waiting_tokens = 0

    @property
    def num_unfinished_elsewhere(self) -> int:
        return self._board.others(Column.NUM_UNFINISHED)

    def change(self, num_sequences: int, num_tokens: int) -> None:
        """Count so many more as promised."""
        self._num_sequences += num_sequences
        self._num_tokens += num_tokens

    def update(self, num_unfinished: int, num_waiting_tokens: int) -> None:
        """Set the numbers of sequences, and of prompt tokens not computed, in the engine."""
        self._num_unfinished, self._num_waiting_tokens = num_unfinished, num_waiting_tokens
        self._board.set(Column.NUM_UNFINISHED, num_unfinished)
        self._board.set(Column.NUM_WAITING_TOKENS, num_waiting_tokens)

    def place(self, processed: ProcessedInput) -> Place:
        """A place for a request that is admitted, or is a part of one that was."""
        sequences = processed.sequences
        return Place(self, len(sequences), sum(map(len, sequences)))

    def admit(self, processed: ProcessedInput) -> Place:
        """A place for a new request; raises QueueFullError."""
        limits, num_choices = self._limits, len(processed.sequences)
        limit = limits.max_num_queued_reqs
        if limit is not None:
            begun = self._num_unfinished + self.num_unfinished_elsewhere
            if begun + self._num_sequences - limits.max_num_seqs + num_choices > limit:
                self._metrics.count_rejection("max_num_queued_reqs")
                raise QueueFullError(
                    f"no more than {limit} requests may wait (--max-num-queued-reqs); try later"
                )
        limit = limits.max_num_queued_tokens
        if limit is not None:
            elsewhere = self._board.others(Column.NUM_WAITING_TOKENS)
            queued = self._num_waiting_tokens + elsewhere + self._num_tokens
            if queued and queued + sum(map(len, processed.sequences)) > limit:
                self._metrics.count_rejection("max_num_queued_tokens")
                raise QueueFullError(
                    f"{queued} prompt tokens wait already (--max-num-queued-tokens {limit}); "
                    "try later"
                )
        return self.place(processed)


class PreparedConstraints:
    """Evicts the least recently used."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Refusal | None] = OrderedDict()

    def unknown(self, processed: Iterable[Task]) -> dict[bytes, SamplingParams]:
        """The constraints of `processed` parameters to prepare in the core, by name.

        Raises RequestError for one that is known to be refused.
        """
        found: dict[bytes, SamplingParams] = {}
        for params in processed:
            if isinstance(params, PoolingParams) or params.structured_outputs is None:
                continue
            asked = _asked(params)
            name = name_of(asked)
            if name not in self._known:
                found[name] = asked
                continue
            self._known.move_to_end(name)
            check_refusal(self._known[name])
        return found

    def learn(self, name: bytes, refusal: Refusal | None) -> None:
        """Remember a lasting answer of the core. Raises RequestError for a refusal."""
        if refusal is None or refusal.status == RequestError.status:
            self._known[name] = refusal
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        check_refusal(refusal)


def check_refusal(refusal: Refusal | None) -> None:
    if refusal is None:
        return
    for kind in (QueueFullError, UnavailableError):
        if refusal.status == kind.status:
            raise kind(refusal.message)
    raise RequestError(refusal.message, refusal.param)


def _asked(params: SamplingParams) -> SamplingParams:
    """The constraint of processed parameters, and the bans that may contradict it."""
    return SamplingParams(
        structured_outputs=params.structured_outputs,
        allowed_token_ids=params.allowed_token_ids,
        bad_words_token_ids=params.bad_words_token_ids,
        stop_token_ids=params.stop_token_ids if params.min_tokens else None,
        max_tokens=None,
        min_tokens=params.min_tokens,
    )


def fan_out(
    request_id: str, request: ProcessedInput, arrival_time: float, priority: int = 0
) -> list[EngineCoreRequest]:
    """A sequence for each of the n choices of a request, or for each part of its prompt.

    With n > 1 their ids are `0_ID`, `1_ID`, ... and choice i samples with seed + i, so that
    seeded choices differ from each other and repeat as a whole.
    """
    sequences, params = request.sequences, request.params
    n = len(sequences)
    return [
        EngineCoreRequest(
            request_id=request_id if n == 1 else f"{index}_{request_id}",
            prompt_token_ids=token_ids,
            task=_choice_params(params, index)
            if n > 1 and isinstance(params, SamplingParams)
            else params,
            eos_token_ids=request.eos_token_ids,
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=request.cache_salt,
            tenant=request.origin.tenant,
        )
        for index, token_ids in enumerate(sequences)
    ]


def _choice_params(params: SamplingParams, index: int) -> SamplingParams:
    choice = copy.copy(params)
    choice.n = 1
    if params.seed is not None:
        # Wrapped around to a signed 64-bit number.
        choice.seed = (params.seed + index + _SEEDS // 2) % _SEEDS - _SEEDS // 2
        if params.seed < -1 <= params.seed + index:
            # -1 means "no seed" and is skipped.
            choice.seed += 1
    if index > 0:
        # One choice reports on the prompt, so that the others may use the prefix cache.
        choice.prompt_logprobs = None
    return choice
