"""Whether the engine core is stuck, seen from a front end that looks once a second.

A step that computes may be slow, so it has VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS. One in which the
core's process uses no processor, because it was stopped or waits for itself, has seconds. Only
time that was looked at counts: a watcher that was itself stopped knows nothing of that time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from vllm_lite import envs
from vllm_lite.engine.core_handle import CoreHandle

# Seconds between two looks.
INTERVAL = 1.0
# Seconds without a sign of life after which a core is given up.
STALL_LIMIT = 6.0
# Processor seconds within STALL_LIMIT that are no sign of life: a socket's thread needs some.
_NOTHING = 0.03
_TICKS_PER_SECOND = 100


class ProcessSign(NamedTuple):
    """What the kernel says of a process: the state of its main thread, seconds of processor."""

    state: str
    cpu: float


def process_sign(pid: int) -> ProcessSign | None:
    """For a process of this machine; None where it is gone or nothing is told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses, and may hold any character.
    state, *fields = text.rpartition(")")[2].split()
    return ProcessSign(state, (int(fields[10]) + int(fields[11])) / _TICKS_PER_SECOND)


class Watch:
    """Looks at one core; ask for a verdict every INTERVAL."""

    def __init__(self, handle: CoreHandle) -> None:
        self._handle = handle
        self._stamp = 0
        self._looked = time.monotonic()
        # Seconds for which looks have found the same step, and no sign of life.
        self._in_step = 0.0
        self._stalled = 0.0
        self._cpu = 0.0

    def verdict(self) -> str | None:
        """Why the core counts as stuck; None where it does not. One look never makes a verdict."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * INTERVAL), now
        stamp = self._handle.heartbeat.stamp
        is_same = stamp != 0 and stamp == self._stamp
        self._stamp = stamp
        self._in_step = self._in_step + passed if is_same else 0.0
        limit = envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
        if is_same and self._in_step > limit:
            return (
                f"a step has been due or running for {self._in_step:.0f} s, longer than "
                f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS={limit}"
            )
        return self._check_stall(passed, is_same)

    def _check_stall(self, passed: float, is_same: bool) -> str | None:
        pid = self._handle.computing_pid
        sign = None if pid is None else process_sign(pid)
        is_still = sign is not None and (
            sign.state == "T"
            # A thread that waits for a disk is honest.
            or (is_same and sign.state != "D" and sign.cpu - self._cpu < _NOTHING)
        )
        if not is_still:
            self._stalled = 0.0
            self._cpu = 0.0 if sign is None else sign.cpu
            return None
        self._stalled += passed
        if self._stalled <= STALL_LIMIT:
            return None
        state = "is stopped (SIGSTOP)" if sign is not None and sign.state == "T" else "computes not"
        return f"its process {state} for {self._stalled:.0f} s"
