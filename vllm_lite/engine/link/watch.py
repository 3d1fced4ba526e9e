"""Detects a stuck engine core, from a front end that looks once a second.

A step may use several times the processor time that the core estimated for the largest one, or
take VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS where that is set. A core that uses no processor during a
step, because it was stopped or deadlocked, has seconds. Only watched time counts, so that a
watcher that was itself stopped does not accuse the core.
"""

from __future__ import annotations

import time

from vllm_lite import envs
from vllm_lite.engine.link.core_handle import CoreHandle
from vllm_lite.lifeline import ProcessSign, process_sign

# Seconds that a step may take where neither the core nor a user has set a limit.
LONGEST_STEP = 300
# Seconds between two looks.
INTERVAL = 1.0
# Seconds without a sign of life after which a core is given up.
STALL_LIMIT = 6.0
# Processor seconds within STALL_LIMIT that are no sign of life: a socket's thread needs some.
_NOTHING = 0.03


class Watch:
    """Watches one core; call `verdict` every INTERVAL."""

    def __init__(self, handle: CoreHandle) -> None:
        self._handle = handle
        self._stamp = 0
        self._looked = time.monotonic()
        # Seconds for which the same step has run, and without a sign of life.
        self._in_step = 0.0
        self._stalled = 0.0
        self._cpu = 0.0
        # Processor seconds of the core when the current step was first seen.
        self._cpu_before = 0.0

    def verdict(self) -> str | None:
        """Why the core counts as stuck; None where it does not. It takes more than one look."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * INTERVAL), now
        stamp = self._handle.heartbeat.stamp
        is_same = stamp != 0 and stamp == self._stamp
        self._stamp = stamp
        self._in_step = self._in_step + passed if is_same else 0.0
        pid = self._handle.watched_pid
        sign = None if pid is None else process_sign(pid)
        return self._check_length(is_same, sign) or self._check_stall(passed, is_same, sign)

    def _check_length(self, is_same: bool, sign: ProcessSign | None) -> str | None:
        if not is_same:
            self._cpu_before = 0.0 if sign is None else sign.cpu
            return None
        limit = envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
        if self._in_step > (limit or LONGEST_STEP):
            return (
                f"a step has been due or running for {self._in_step:.0f} s, longer than "
                f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS={limit or LONGEST_STEP}"
            )
        share = self._handle.heartbeat.step_limit
        used = 0.0 if sign is None else sign.cpu - self._cpu_before
        if limit is None and 0 < share < used:
            return (
                f"a step has used {used:.0f} s of processor time, several times what the largest "
                "should take; VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS sets another limit"
            )
        return None

    def _check_stall(self, passed: float, is_same: bool, sign: ProcessSign | None) -> str | None:
        may_wait = not (is_same and self._handle.computes_itself)
        is_still = sign is not None and (
            sign.state == "T"
            # A thread may wait for a disk.
            or not (may_wait or sign.state == "D" or sign.cpu - self._cpu >= _NOTHING)
        )
        if not is_still:
            self._stalled = 0.0
            self._cpu = 0.0 if sign is None else sign.cpu
            return None
        self._stalled += passed
        if self._stalled <= STALL_LIMIT:
            return None
        state = (
            "has been stopped (SIGSTOP)"
            if sign is not None and sign.state == "T"
            else "has used no processor"
        )
        return f"its process {state} for {self._stalled:.0f} s"
