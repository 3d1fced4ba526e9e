"""Shared by the child processes: orders, answers, prompts, and busy neighbours.

A child runs in an engine's own environment, so only the standard library is used here. It is
given one JSON argument and prints a line for each measurement as soon as it is made: whatever
happens later, what is printed counts.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MARK = "MEASURED "
# Neighbours that are to be felt compute all the time.
_BUSY = "while True: pass"
# Ids that every vocabulary has and that are no special tokens.
_LOWEST_ID, _HIGHEST_ID = 100, 30_000


def orders() -> dict[str, Any]:
    """The child's JSON argument."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def measured(work: str, **values: float | str) -> None:
    """Send the parent a measurement of `work`."""
    print(MARK + json.dumps({"work": work, **values}), flush=True)


def failed(work: str, error: BaseException) -> None:
    """Send the parent the reason that `work` was not measured."""
    reason = " ".join(str(error).split()) or type(error).__name__
    print(MARK + json.dumps({"work": work, "error": reason[:300]}), flush=True)


def ready(spawned: float) -> None:
    """Send the parent the engine's start-up time, from its process's creation on."""
    measured("ready", seconds=time.monotonic() - spawned)


def run_all(make_engine: Callable[[dict[str, Any]], Any]) -> None:
    """Do one piece of work after another; one that fails does not keep the next from its turn."""
    given = orders()
    engine = make_engine(given)
    for step in given["steps"]:
        try:
            engine.run(step)
        except Exception as error:
            failed(step["work"], error)


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` random ids, the same for every engine."""
    source = random.Random(seed)
    return [
        [source.randrange(_LOWEST_ID, _HIGHEST_ID) for _ in range(length)] for _ in range(count)
    ]


def median_seconds(call: Callable[[int], float], times: int) -> float:
    """The median of `times` values of `call`, which is given its number from 1 on."""
    return statistics.median(call(number) for number in range(1, times + 1))


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """So many processes beside this one that never rest."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        time.sleep(0.5)  # until they compute
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
