"""How much may wait: the limits of the queue, and the places in it that are promised.

Knows no engine: the caller says what waits. Invariant: requests that were let in but have not
begun count as waiting, so that many at once cannot pass where one after another could not.
"""

from __future__ import annotations

from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.errors import QueueFullError
from vllm_lite.metrics.board import Board, Column, NoBoard
from vllm_lite.metrics.engine_metrics import EngineMetrics, NoMetrics


class Place:
    """Room for one request; given back by `leave`, or with the last reference to it."""

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
    """Lets requests in as long as not too much waits; what can run at once never waits."""

    def __init__(
        self,
        limits: SchedulerConfig,
        metrics: EngineMetrics | NoMetrics,
        board: Board | NoBoard | None = None,
    ) -> None:
        self._limits = limits
        self._metrics = metrics
        # What other front ends of the same engine have let in.
        self._board = board or NoBoard()
        self._num_sequences = 0
        self._num_tokens = 0

    @property
    def num_unfinished_elsewhere(self) -> int:
        """Sequences that other front ends have let in."""
        return self._board.others(Column.NUM_UNFINISHED)

    def change(self, num_sequences: int, num_tokens: int) -> None:
        """Count so many more as promised."""
        self._num_sequences += num_sequences
        self._num_tokens += num_tokens

    def tell(self, num_unfinished: int, num_waiting: int) -> None:
        """Let other front ends know what is counted here, as `admit` takes it."""
        self._board.set(Column.NUM_UNFINISHED, num_unfinished)
        self._board.set(Column.NUM_WAITING_TOKENS, num_waiting)

    def place(self, processed: ProcessedInput) -> Place:
        """A place for a request that is let in, or is a part of one that was."""
        num_choices = processed.params.n
        return Place(self, num_choices, num_choices * len(processed.prompt_token_ids))

    def admit(self, processed: ProcessedInput, num_unfinished: int, num_waiting: int) -> Place:
        """A place beside `num_unfinished` sequences; raises QueueFullError.

        `num_waiting` counts the prompt tokens of those that have not been computed.
        """
        self.tell(num_unfinished, num_waiting)
        num_unfinished += self.num_unfinished_elsewhere
        num_waiting += self._board.others(Column.NUM_WAITING_TOKENS)
        limits, num_choices = self._limits, processed.params.n
        waiting = num_unfinished + self._num_sequences - limits.max_num_seqs
        limit = limits.max_num_queued_reqs
        if limit is not None and waiting + num_choices > limit:
            self._metrics.count_rejection("max_num_queued_reqs")
            raise QueueFullError(
                f"no more than {limit} requests may wait (--max-num-queued-reqs); try later"
            )
        limit, queued = limits.max_num_queued_tokens, num_waiting + self._num_tokens
        asked = num_choices * len(processed.prompt_token_ids)
        if limit is not None and queued and queued + asked > limit:
            self._metrics.count_rejection("max_num_queued_tokens")
            raise QueueFullError(
                f"{queued} prompt tokens wait already (--max-num-queued-tokens {limit}); try later"
            )
        return self.place(processed)
