"""Cases of kernels: the time of a call and its share of the machine's limits.

Knows no kernel. A case that reads more than caches hold is given as several calls over different
data, which are made in turn: in a model, too, a weight is read once a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.limits import Arithmetic, Limits

# More than the last-level cache of most processors; limits.cpp reads as much.
BEYOND_CACHES = 256 << 20
MIN_CALLS, MAX_CALLS = 8, 4000


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder that its kernels see."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int


SHAPES = {
    "demo": Shape(576, 1536, 9, 3, 64, 49152),
    "1.1b": Shape(2048, 5632, 32, 4, 64, 32000),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size. Bytes and operations are the least that one call can do with."""

    kernel: str
    size: str
    # Makes the data, then gives the calls to make in turn.
    make: Callable[[], Sequence[Callable[[], object]]]
    num_bytes: float
    num_operations: float
    arithmetic: Arithmetic
    # As many operations as all vector instructions of its loop could be, where those are counted.
    num_counted: float | None = None
    # Whether the bytes lie anywhere, as blocks of a cache do.
    is_scattered: bool = False
    # Run before each call, outside the clock.
    reset: Callable[[], object] | None = None
    # The same by torch, as fast as it can.
    make_rival: Callable[[], Sequence[Callable[[], object]]] | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of a call."""

    case: Case
    seconds: float
    rival_seconds: float | None = None

    @property
    def gb_s(self) -> float:
        """Billions of bytes moved a second."""
        return self.case.num_bytes / self.seconds * 1e-9

    @property
    def gflop_s(self) -> float:
        """Billions of operations a second."""
        return self.case.num_operations / self.seconds * 1e-9

    def share(self, limits: Limits) -> float:
        """Share of the binding limit; above 1 if the data are cached."""
        case = self.case
        return limits.seconds(case.num_bytes, case.num_operations, case.arithmetic) / self.seconds

    def share_of_counted(self, limits: Limits) -> float | None:
        """Share of the limit of the loop's counted instructions, for a case that has them."""
        case = self.case
        if case.num_counted is None:
            return None
        return limits.seconds(case.num_bytes, case.num_counted, case.arithmetic) / self.seconds

    def share_of_scattered(self, limits: Limits) -> float | None:
        """Share of the limit of reading scattered pieces, for a case that does."""
        if not (self.case.is_scattered and limits.scattered_gb_s):
            return None
        return self.gb_s / limits.scattered_gb_s


def measure(case: Case, seconds: float) -> Timing:
    """The median call of about so many seconds of calls; of torch's then, which wait spinning."""
    own = _median_call(case.make(), case.reset, seconds)
    if case.make_rival is None:
        return Timing(case, own)
    return Timing(case, own, _median_call(case.make_rival(), case.reset, seconds))


def _median_call(
    calls: Sequence[Callable[[], object]], reset: Callable[[], object] | None, seconds: float
) -> float:
    for call in calls[:3]:
        call()
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < MIN_CALLS or (len(taken) < MAX_CALLS and time.perf_counter() < deadline):
        call = calls[len(taken) % len(calls)]
        if reset is not None:
            reset()
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def copies(num_bytes: float) -> int:
    """How many data of a size are more than caches hold."""
    return max(1, int(-(-BEYOND_CACHES // num_bytes)))
