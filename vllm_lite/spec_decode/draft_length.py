"""How many drafts of a request are worth verifying: by what came true, and by what a row costs.

A draft is worth its time where it yields tokens faster than the step does without it. Both sides
are learned from the steps that ran; only how many drafts are verified depends on it, never a token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_lite.config.speculative import SpeculativeConfig

# Weights of the newest step, and of a request's newest drafts, in the estimates.
_NEWEST_STEP = 0.03
_NEWEST_DRAFTS = 0.15
_FADING = 0.01
# A draft must promise so much more than the step yields anyway.
_MARGIN = 1.15
# Rows that cost as much as the weights' way through memory, before anything is measured.
_ROWS_PER_READ = 32
# Steps without drafts before any, how many of them count, and steps from one to the next.
_LEAST_STEPS, _STEPS_KEPT, _STEPS_BETWEEN = 8, 16, 64
# Least share of a step's time that a draft takes.
_LEAST_SHARE = 0.002
# Where a draft for each request adds more than so many steps' time, none is tried to see.
_MOST_FOR_A_LOOK = 0.6
# Tokens until a request whose drafts failed tries one again: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 256
# After so many looks without a draft a request is looked at half as often, down to every 8th step.
_PATIENCE, _MOST_HALVINGS = 8, 3


@dataclass(slots=True)
class Record:
    """A request's drafts so far."""

    # Probability that a draft comes true where those before it did.
    acceptance: float
    # Output tokens at which drafts are tried again, and the length of the last pause.
    resume_at: int = 0
    pause: int = 0
    # Times in a row that no draft was found.
    misses: int = 0


class StepCost:
    """Time that drafts add to steps of about so many requests."""

    def __init__(self, num_requests: int) -> None:
        # Of a step's time, for each draft, before anything is measured. It is hopeful: what is
        # never tried is never measured.
        self._usual = 1 / max(2 * num_requests, _ROWS_PER_READ)
        # The weight of that beside what is measured, in drafts.
        self._weight = float(num_requests)
        # Seconds of the newest steps without drafts.
        self._alone: deque[float] = deque(maxlen=_STEPS_KEPT)
        # Sums over the newest steps: of drafts, and of what they added in units of `alone`.
        self._drafts, self._added = self._weight, self._weight * self._usual

    @property
    def is_known(self) -> bool:
        """Whether it is known how long steps without drafts take."""
        return len(self._alone) >= _LEAST_STEPS

    @property
    def share(self) -> float:
        """Of the time of a step without drafts, what each draft adds."""
        return max(self._added / self._drafts, _LEAST_SHARE)

    def learn(self, num_drafts: int, seconds: float) -> None:
        """Learn the time of a step; a slow one says little, as others run on the machine, too."""
        if not num_drafts:
            self._alone.append(seconds)
            # What nothing measures any more fades, or it would be believed for ever.
            self._drafts += _FADING * (self._weight - self._drafts)
            self._added += _FADING * (self._weight * self._usual - self._added)
        elif self._alone and (alone := median(self._alone)):
            expected = self.share * num_drafts
            most = 0.2 + expected / 2
            added = seconds / alone - 1 - expected
            added = expected + min(max(added, -most), most)
            self._drafts += num_drafts - _NEWEST_STEP * self._drafts
            self._added += added - _NEWEST_STEP * self._added


class DraftLengths:
    """Says how many drafts each request of a step may have; this base: as many as there may be."""

    def begin_step(self, number: int, num_requests: int) -> None:
        """Begin a step, by its number, in which so many requests run."""

    def choose(self, request_id: str, num_output_tokens: int, most: int) -> int:
        """How many drafts, up to `most`, a request that has so many tokens of output may have."""
        return most

    def observe(self, request_id: str, num_drafts: int, accepted: int) -> None:
        """Learn what came of a request's drafts, of which there were maybe none."""

    def learn(self, num_requests: int, num_drafts: int, seconds: float) -> None:
        """Learn the time of a step that computed no prompts."""

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that ended."""


class FixedLengths(DraftLengths):
    """As many drafts as are told, by the number of requests."""

    def __init__(self, table: list[list[int]], otherwise: int) -> None:
        """`table`: (fewest requests, most requests, drafts)."""
        self._table, self._otherwise = table, otherwise
        self._most = otherwise

    def begin_step(self, number: int, num_requests: int) -> None:
        """Look up the number of drafts for so many requests."""
        fitting = (most for low, high, most in self._table if low <= num_requests <= high)
        self._most = next(fitting, self._otherwise)

    def choose(self, request_id: str, num_output_tokens: int, most: int) -> int:
        """The same for every request, up to `most`."""
        return min(most, self._most)


class AutomaticLengths(DraftLengths):
    """As many drafts as promise to make up for their time."""

    def __init__(self, acceptance: float) -> None:
        """`acceptance`: what is expected of drafts before any was verified."""
        self._records: dict[str, Record] = {}
        # What new requests begin with follows what came true of late.
        self._usual = acceptance
        # By the bit length of the number of requests.
        self._costs: dict[int, StepCost] = {}
        self._number = self._num_requests = 0
        # Of a draft for each request, in steps without any; None while those are not known.
        self._cost: float | None = None

    def begin_step(self, number: int, num_requests: int) -> None:
        self._number, self._num_requests = number, num_requests
        known = self._costs.get(num_requests.bit_length())
        self._cost = None
        if known is not None and known.is_known and number % _STEPS_BETWEEN:
            self._cost = known.share * num_requests

    def choose(self, request_id: str, num_output_tokens: int, most: int) -> int:
        """How many drafts, up to `most`, pay for a request that has so many tokens of output."""
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = Record(self._usual)
        # A step without any draft costs nothing: those that seldom find one look in the same steps.
        interval = 1 << min(record.misses // _PATIENCE, _MOST_HALVINGS)
        cost = self._cost
        if cost is None or num_output_tokens < record.resume_at or self._number % interval:
            return 0
        likelihood, expected, count = 1.0, 0.0, 0
        while count < most:
            likelihood *= record.acceptance
            # Tokens of each request in the time of a step without drafts.
            rate = (1 + expected) / (1 + cost * count)
            if likelihood < _MARGIN * rate * cost:
                break
            expected += likelihood
            count += 1
        if not count and most:
            # From time to time one draft shows whether that is still so.
            record.pause = min(max(_FIRST_PAUSE, 2 * record.pause), _LONGEST_PAUSE)
            record.resume_at = num_output_tokens + record.pause
            return int(cost < _MOST_FOR_A_LOOK)
        return count

    def observe(self, request_id: str, num_drafts: int, accepted: int) -> None:
        record = self._records.get(request_id)
        if record is None:
            return
        record.misses = 0 if num_drafts else record.misses + 1
        if not num_drafts:
            return
        tried = min(accepted + 1, num_drafts)
        weight = min(1.0, _NEWEST_DRAFTS * tried)
        record.acceptance += weight * (accepted / tried - record.acceptance)
        self._usual += weight / 4 * (accepted / tried - self._usual)
        if accepted == num_drafts:
            record.resume_at = record.pause = 0

    def learn(self, num_requests: int, num_drafts: int, seconds: float) -> None:
        if num_requests:
            size = num_requests.bit_length()
            cost = self._costs.get(size)
            if cost is None:
                cost = self._costs[size] = StepCost(num_requests)
            cost.learn(num_drafts, seconds)

    def forget(self, request_id: str) -> None:
        self._records.pop(request_id, None)


def make_lengths(config: SpeculativeConfig) -> DraftLengths:
    """The rule of `config`: a table where one is given, else automatic."""
    table = config.num_speculative_tokens_per_batch_size
    if table is not None:
        return FixedLengths(table, config.num_drafts)
    return AutomaticLengths(0.5)
