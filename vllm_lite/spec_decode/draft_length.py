"""How many drafts of a request are worth verifying: by what came true, and by what a row costs.

A draft is worth its time where it yields tokens faster than the step does without it. Both sides
are learned from the steps that ran; only how many drafts are verified depends on it, never a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vllm_lite.config.speculative import SpeculativeConfig

# Weights of the newest step, and of a request's newest drafts, in the estimates.
_NEWEST_STEP = 0.1
_NEWEST_DRAFTS = 0.15
_FADING = 0.002
# A draft must promise so much more than the step yields anyway.
_MARGIN = 1.15
# Rows that cost as much as the weights' way through memory, before anything is measured.
_ROWS_PER_READ = 32
# Tokens until a request whose drafts failed tries one again: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 256


@dataclass(slots=True)
class Record:
    """A request's drafts so far."""

    # Probability that a draft comes true where those before it did.
    acceptance: float
    # Output tokens at which drafts are tried again, and the length of the last pause.
    resume_at: int = 0
    pause: int = 0


class DraftLengths(Protocol):
    """Says how many drafts each request of a step may have."""

    def begin_step(self, num_requests: int) -> None:
        """Begin a step in which so many requests run."""

    def choose(self, request_id: str, num_output_tokens: int, most: int) -> int:
        """How many drafts, up to `most`, a request that has so many tokens of output may have."""

    def observe(self, request_id: str, num_output: int, num_drafts: int, accepted: int) -> None:
        """Learn what came of a request's drafts."""

    def learn(self, num_requests: int, num_drafts: int, seconds: float) -> None:
        """Learn the time of a step that computed no prompts."""

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that ended."""


class FixedLengths:
    """As many drafts as are told, by the number of requests."""

    def __init__(self, table: list[list[int]], otherwise: int) -> None:
        """`table`: (fewest requests, most requests, drafts)."""
        self._table, self._otherwise = table, otherwise
        self._most = otherwise

    def begin_step(self, num_requests: int) -> None:
        """Look up the number of drafts for so many requests."""
        fitting = (most for low, high, most in self._table if low <= num_requests <= high)
        self._most = next(fitting, self._otherwise)

    def choose(self, request_id: str, num_output_tokens: int, most: int) -> int:
        """The same for every request, up to `most`."""
        return min(most, self._most)

    def observe(self, request_id: str, num_output: int, num_drafts: int, accepted: int) -> None:
        """Nothing depends on it."""

    def learn(self, num_requests: int, num_drafts: int, seconds: float) -> None:
        """Nothing depends on it."""

    def forget(self, request_id: str) -> None:
        """Nothing is known of requests."""


class AutomaticLengths:
    """As many drafts as promise to make up for their time."""

    def __init__(self, acceptance: float) -> None:
        """`acceptance`: what is expected of drafts before any was verified."""
        self._records: dict[str, Record] = {}
        # What new requests begin with follows what came true of late.
        self._usual = acceptance
        # By the bit length of the number of requests: seconds without drafts, and the share of
        # them that a draft adds.
        self._alone: dict[int, float] = {}
        self._share: dict[int, float] = {}
        self._num_requests = 0
        self._cost = 0.0

    def begin_step(self, num_requests: int) -> None:
        """Begin a step in which so many requests run."""
        if num_requests == self._num_requests:
            return
        self._num_requests = num_requests
        self._update_cost()

    def choose(self, request_id: str, num_output_tokens: int, most: int) -> int:
        """How many drafts, up to `most`, pay for a request that has so many tokens of output."""
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = Record(self._usual)
        if num_output_tokens < record.resume_at:
            return 0
        # In steps without drafts: a row's time is `cost`, and each request yields 1 token.
        cost, likelihood, expected, count = self._cost, 1.0, 0.0, 0
        while count < most:
            likelihood *= record.acceptance
            rate = (1 + expected) / (1 + cost * self._num_requests * count)
            if likelihood < _MARGIN * rate * cost * self._num_requests:
                break
            expected += likelihood
            count += 1
        if not count and most:
            # From time to time one draft shows whether that is still so.
            record.pause = min(max(_FIRST_PAUSE, 2 * record.pause), _LONGEST_PAUSE)
            record.resume_at = num_output_tokens + record.pause
            return int(cost * self._num_requests < 1)
        return count

    def observe(self, request_id: str, num_output: int, num_drafts: int, accepted: int) -> None:
        """Learn what came of a request's drafts."""
        record = self._records.get(request_id)
        if record is None:
            return
        tried = min(accepted + 1, num_drafts)
        weight = min(1.0, _NEWEST_DRAFTS * tried)
        record.acceptance += weight * (accepted / tried - record.acceptance)
        self._usual += weight / 4 * (accepted / tried - self._usual)
        if accepted == num_drafts:
            record.resume_at = record.pause = 0

    def learn(self, num_requests: int, num_drafts: int, seconds: float) -> None:
        """Learn the time of a step that computed no prompts."""
        size = num_requests.bit_length()
        alone = self._alone.get(size)
        if not num_drafts:
            old = seconds if alone is None else alone
            # One slow step says little: others run on the machine, too.
            seconds = min(seconds, 2 * old)
            self._alone[size] = old + _NEWEST_STEP * (seconds - old)
            if size in self._share:
                # What nothing measures any more fades, or one slow step would end drafts for ever.
                usual = 1 / max(num_requests, _ROWS_PER_READ)
                self._share[size] += _FADING * (usual - self._share[size])
        elif alone:
            share = max(seconds / alone - 1, 0.0) / num_drafts
            old = self._share_of(size, num_requests)
            share = min(share, 4 * old)
            self._share[size] = old + _NEWEST_STEP * (share - old)
            self._update_cost()

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that ended."""
        self._records.pop(request_id, None)

    def _update_cost(self) -> None:
        """Set a draft's share of the time that a step takes without any."""
        requests = self._num_requests
        self._cost = max(self._share_of(requests.bit_length(), requests), 0.002)

    def _share_of(self, size: int, num_requests: int) -> float:
        return self._share.get(size, 1 / max(num_requests, _ROWS_PER_READ))


def make_lengths(config: SpeculativeConfig) -> DraftLengths:
    """The rule of `config`: a table where one is given, else automatic."""
    table = config.num_speculative_tokens_per_batch_size
    if table is not None:
        return FixedLengths(table, config.num_drafts)
    return AutomaticLengths(0.5)
