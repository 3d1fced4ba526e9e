"""Ranks of a tensor-parallel group as child processes: each gets every step, the first answers.

Messages go through a socket for each rank; tensors go through the group's shared memory. A thread
watches: a rank that throws, ends or does not answer ends them all, which whoever waits for one sees
as the end of its messages. Nothing has a name in the file system.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec

import vllm_lite._cpu as _cpu
from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, ModelRunnerOutput, SchedulerOutput
from vllm_lite.errors import CheckpointError, EngineDeadError, UsageError, VLLMLiteError
from vllm_lite.executor.executor import Answer, Args, Executor
from vllm_lite.executor.rank_messages import (
    CallMethod,
    RankJob,
    Report,
    RunStep,
    encode,
    read_answer,
)
from vllm_lite.lifeline import ChildProcess, process_sign
from vllm_lite.worker.interface import StepWorker

# Seconds between two looks at the ranks, and for which one may be stopped, or all may be idle
# while a step is due.
INTERVAL, STOP_LIMIT, STALL_LIMIT = 0.5, 1.5, 3.0
# Processor seconds of all ranks within STALL_LIMIT that are no sign of life.
_NOTHING = 0.03
# Seconds that a rank may take to end once it was killed.
_LAST_MOMENTS = 5.0
_USER_ERRORS = {error.__name__: error for error in (UsageError, CheckpointError)}


@dataclass(frozen=True, slots=True)
class RankOutput:
    """The answer to a step, which the first rank gives."""

    executor: MultiprocExecutor
    number: int

    def get(self) -> ModelRunnerOutput:
        """Wait for the step; raises EngineDeadError where a rank ended."""
        return self.executor.take_output(self.number)


class MultiprocExecutor(Executor):
    """Runs each step on all ranks at once."""

    def __init__(self, config: VllmConfig) -> None:
        """Raises UsageError where a rank cannot hold its part of the model."""
        self.max_in_flight = 2 if config.scheduler.async_scheduling else 1
        self.failure_fd, self._failure_writer = os.pipe()
        self._ended = threading.Event()
        self._is_closing = False
        self._num_submitted = self._num_answered = 0
        self._start(config)
        self._thread = threading.Thread(target=self._watch, name="rank-watch", daemon=True)
        self._thread.start()
        try:
            for rank in range(len(self._ranks)):
                self._receive(rank)
        except BaseException:
            self.shutdown()
            raise

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Send a step to all ranks, which ask for no masks."""
        self._send(encode(RunStep(step)))
        self._num_submitted += 1
        return RankOutput(self, self._num_submitted)

    def take_output(self, number: int) -> ModelRunnerOutput:
        """The answer to the step `number`; earlier answers are skipped."""
        data = b""
        while self._num_answered < number:
            data = self._receive(0)
            self._num_answered += 1
        return msgspec.msgpack.decode(data, type=ModelRunnerOutput)

    def call(self, method: Callable[[StepWorker, *Args], Answer], *args: *Args) -> list[Answer]:
        """Call a method of all ranks at once."""
        self._send(encode(CallMethod.of(method, args)))
        return [read_answer(method, self._receive(rank)) for rank in range(len(self._ranks))]

    def shutdown(self) -> None:
        """End the ranks: they hold nothing but memory."""
        if self._is_closing:
            return
        self._is_closing = True
        for child, connection in self._ranks:
            child.kill()
            connection.close()
        for child, _ in self._ranks:
            child.ended.wait(_LAST_MOMENTS)
        self._thread.join(_LAST_MOMENTS)
        for fd in (self.failure_fd, self._failure_writer, self._reports, self._exits):
            if fd is not None:
                os.close(fd)

    def _start(self, config: VllmConfig) -> None:
        size = config.parallel.tensor_parallel_size
        quiet = replace(config, load=replace(config.load, use_tqdm_on_load=False))
        group_fd = os.memfd_create("vllm-lite-ranks")
        self._group = _cpu.RankGroup(group_fd, 0, size)
        self._reports, reports_writer = os.pipe()
        self._exits, exits_writer = os.pipe()
        self._ranks: list[tuple[ChildProcess, Connection]] = []
        for rank in range(size):
            ours, theirs = Pipe()
            fds = (theirs.fileno(), reports_writer, group_fd)
            child = ChildProcess(
                "vllm_lite.executor.rank_process",
                [str(number) for number in (rank, os.getpid(), *fds)],
                pass_fds=fds,
                environment=envs.module_environment(),
                exit_writer=os.dup(exits_writer),
            )
            theirs.close()
            self._ranks.append((child, ours))
        for fd in (group_fd, reports_writer, exits_writer):
            os.close(fd)
        for rank, (child, _) in enumerate(self._ranks):
            if child.error is None:
                child.give(encode(RankJob(size, quiet if rank else config)))

    def _send(self, data: bytes) -> None:
        with self._knowing_the_cause():
            for _, connection in self._ranks:
                connection.send_bytes(data)

    def _receive(self, rank: int) -> bytes:
        with self._knowing_the_cause():
            return self._ranks[rank][1].recv_bytes()

    @contextlib.contextmanager
    def _knowing_the_cause(self) -> Iterator[None]:
        """Raise the error that ended a rank in place of its connection's."""
        try:
            yield
        except (EOFError, OSError):
            if self._is_closing:
                raise RuntimeError("the executor was shut down") from None
            self._ended.wait(_LAST_MOMENTS)
            raise self.failure or EngineDeadError("the ranks of the executor ended") from None

    # ---- the watching thread

    def _watch(self) -> None:
        signs = _Signs([child.process.pid for child, _ in self._ranks if child.process])
        poller = select.poll()
        poller.register(self._reports, select.POLLIN)
        poller.register(self._exits, select.POLLIN)
        cause: VLLMLiteError | None = None
        while cause is None and not self._is_closing:
            has_news = poller.poll(INTERVAL * 1000)
            is_due = self._num_submitted > self._num_answered
            if has_news:
                cause = self._find_end(dict(has_news))
            elif stuck := signs.find_stuck(is_due):
                rank, what = stuck
                rank = self._group.slowest_rank() if rank is None else rank
                cause = EngineDeadError(f"rank {rank} does not answer: its process {what}")
        if cause is not None and not self._is_closing:
            self.failure = cause
            self._ended.set()
            for child, _ in self._ranks:
                child.kill()
            os.write(self._failure_writer, b"x")

    def _find_end(self, news: dict[int, int]) -> VLLMLiteError | None:
        # A rank reports before it lets the others fail.
        if news.get(self._reports, 0) & select.POLLIN:
            lines = os.read(self._reports, 1 << 16).splitlines()
            report = msgspec.json.decode(lines[0], type=Report)
            if report.kind in _USER_ERRORS:
                return _USER_ERRORS[report.kind](report.message)
            return EngineDeadError(f"rank {report.rank} failed: {report.kind}: {report.message}")
        for rank, (child, _) in enumerate(self._ranks):
            if child.ended.is_set():
                return EngineDeadError(f"rank {rank}: {child.error or child.exit_cause()}")
        return None


make_executor = MultiprocExecutor


class _Signs:
    """Signs of life of the ranks' processes; only watched time counts."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._looked = time.monotonic()
        self._stopped = [0.0] * len(pids)
        self._still = self._cpu = 0.0

    def find_stuck(self, is_due: bool) -> tuple[int | None, str] | None:
        """A stuck rank (None: any) and its process's state; None where none is stuck."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * INTERVAL), now
        signs = [process_sign(pid) for pid in self._pids]
        for rank, sign in enumerate(signs):
            is_stopped = sign is not None and sign.state == "T"
            self._stopped[rank] = self._stopped[rank] + passed if is_stopped else 0.0
            if self._stopped[rank] > STOP_LIMIT:
                return rank, "is stopped (SIGSTOP)"
        cpu = sum(sign.cpu for sign in signs if sign)
        # A rank may compute, or wait for a disk.
        is_still = is_due and not any(sign is None or sign.state in "RD" for sign in signs)
        if is_still and cpu - self._cpu < _NOTHING:
            self._still += passed
        else:
            self._still, self._cpu = 0.0, cpu
        return (None, "uses no processor") if self._still > STALL_LIMIT else None
