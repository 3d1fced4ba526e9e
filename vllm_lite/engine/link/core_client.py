"""Two ways to reach an engine core behind a handle: blocking, and from an event loop.

They carry sequences and ids and know no text. A dead or stuck core turns every call into
EngineDeadError with the cause that the core left behind.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.client import PauseMode
from vllm_lite.engine.link.core_handle import CoreHandle
from vllm_lite.engine.link.messages import (
    AbortRequests,
    AddRequests,
    CallResult,
    CoreFailed,
    CoreReady,
    FromCore,
    GetSnapshot,
    GetStats,
    IsPaused,
    Pause,
    Prepare,
    Prepared,
    ResetPrefixCache,
    Resume,
    SnapshotTaken,
    StepOutputs,
)
from vllm_lite.engine.link.watch import INTERVAL, Watch
from vllm_lite.errors import EngineDeadError
from vllm_lite.log import init_logger
from vllm_lite.metrics.stats import EngineSnapshot, SchedulerStats
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.grammar import Refusal

logger = init_logger(__name__)

# What is asked of the core, and what it answers.
Call = ResetPrefixCache | GetStats | GetSnapshot | Pause | Resume | IsPaused
Answer = bool | SchedulerStats | EngineSnapshot
# Seconds a core may take to end after its last step.
STOP_TIMEOUT = 5.0


class CoreClient(Protocol):
    """An engine core for one blocking caller."""

    ready: CoreReady

    def add_requests(self, requests: list[EngineCoreRequest]) -> None:
        """Queue sequences."""
        ...

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored."""
        ...

    def prepare(self, asked: Iterable[SamplingParams]) -> list[Refusal | None]:
        """Compile canonical constraints, side by side; why each is refused, if it is."""
        ...

    def get_output(self) -> StepOutputs:
        """What the next step gives; waits for it."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False where blocks are in use."""
        ...

    def get_stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        ...

    def sleep(self, releases: bool) -> None:
        """Begin nothing until wake_up(); with `releases` the cache's memory is given back."""
        ...

    def wake_up(self) -> None:
        """Go on after sleep()."""
        ...

    def shutdown(self) -> None:
        """End the core; calling it again does nothing."""
        ...


class SyncMPClient:
    """A core behind a handle, for one blocking caller."""

    def __init__(self, handle: CoreHandle) -> None:
        self.ready = handle.wait_ready()
        self._handle = handle
        self._watcher = Watch(handle)
        self._call_ids = itertools.count()
        self._outputs: deque[StepOutputs] = deque()
        self._dead: EngineDeadError | None = None
        self._is_open = True

    def add_requests(self, requests: list[EngineCoreRequest]) -> None:
        self._check_alive()
        self._handle.send(AddRequests(requests))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        if self._dead is None:
            self._handle.send(AbortRequests(list(request_ids)))

    def prepare(self, asked: Iterable[SamplingParams]) -> list[Refusal | None]:
        self._check_alive()
        calls = [Prepare(next(self._call_ids), params) for params in asked]
        for call in calls:
            self._handle.send(call)
        answers: dict[int, Refusal | None] = {}
        while len(answers) < len(calls):
            message = self._receive()
            if isinstance(message, Prepared):
                answers[message.call_id] = message.refusal
            elif isinstance(message, StepOutputs):
                self._outputs.append(message)
        return [answers[call.call_id] for call in calls]

    def get_output(self) -> StepOutputs:
        if self._outputs:
            return self._outputs.popleft()
        while True:
            message = self._receive()
            if isinstance(message, StepOutputs):
                return message

    def reset_prefix_cache(self) -> bool:
        return bool(self._call(ResetPrefixCache(next(self._call_ids))))

    def get_stats(self) -> SchedulerStats:
        stats = self._call(GetStats(next(self._call_ids)))
        assert isinstance(stats, SchedulerStats)
        return stats

    def sleep(self, releases: bool) -> None:
        self._call(Pause(next(self._call_ids), "abort", clear_cache=True, sleeps=releases))

    def wake_up(self) -> None:
        self._call(Resume(next(self._call_ids)))

    def shutdown(self) -> None:
        if self._is_open:
            self._is_open = False
            self._handle.stop(STOP_TIMEOUT)
            self._dead = self._dead or EngineDeadError("The engine was shut down")

    def _call(self, command: Call) -> bool | SchedulerStats:
        self._check_alive()
        self._handle.send(command)
        while True:
            message = self._receive()
            if isinstance(message, CallResult) and message.call_id == command.call_id:
                return message.value
            if isinstance(message, StepOutputs):
                self._outputs.append(message)

    def _receive(self) -> FromCore:
        """The next message; raises EngineDeadError where none can come."""
        self._check_alive()
        handle = self._handle
        while True:
            message = handle.channel.receive()
            if message is None and not handle.channel.wait(INTERVAL, other_fd=handle.exit_fd):
                self._check_core()
            if isinstance(message, CoreFailed):
                handle.wait_ended(STOP_TIMEOUT)
                self._die(f"{message.kind}: {message.message}")
            elif message is not None:
                return message

    def _check_core(self) -> None:
        if self._handle.wait_ended(0):
            self._die(self._handle.last_words())
        cause = self._watcher.verdict()
        if cause is not None:
            self._handle.kill()
            self._die(cause)

    def _die(self, cause: str) -> None:
        self._dead = EngineDeadError(f"The engine core died: {cause}")
        raise self._dead

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead


class AsyncMPClient:
    """A core behind a handle, for tasks of one event loop; sending never blocks."""

    def __init__(self, handle: CoreHandle) -> None:
        self.ready = handle.wait_ready()
        self.dead_error: EngineDeadError | None = None
        self._handle = handle
        self._watcher = Watch(handle)
        self._call_ids = handle.seat.call_ids()
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._prepares: dict[int, asyncio.Future[Refusal | None]] = {}
        self._outputs: deque[StepOutputs] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._is_open = True

    def sequence_id(self, request_id: str) -> str:
        """An id for the core that no other request has."""
        return self._handle.seat.sequence_id(request_id)

    def attach(self) -> None:
        """Listen to the core from the running event loop; every other method comes after it."""
        self._loop = loop = asyncio.get_running_loop()
        loop.add_reader(self._handle.channel.incoming_fd, self._on_messages)
        loop.add_reader(self._handle.exit_fd, self._on_exit)
        self._watch = loop.call_later(INTERVAL, self._on_watch)
        # The descriptor is edge-triggered: what came before is announced by nobody.
        self._on_messages()

    def add_requests(self, requests: list[EngineCoreRequest]) -> None:
        """Queue sequences."""
        self.check_alive()
        self._handle.send(AddRequests(requests))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored, and so is a dead core."""
        if self.dead_error is None:
            self._handle.send(AbortRequests(list(request_ids)))

    async def prepare(self, params: SamplingParams) -> Refusal | None:
        """Compile a canonical constraint; why it is refused, if it is."""
        self.check_alive()
        call = Prepare(next(self._call_ids), params)
        future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._prepares[call.call_id] = future
        self._handle.send(call)
        return await future

    async def get_outputs(self) -> list[StepOutputs]:
        """Every step's outputs that came since the last call; waits for at least one."""
        while not self._outputs:
            if self.dead_error is not None:
                raise self.dead_error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs = list(self._outputs)
        self._outputs.clear()
        return outputs

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False where blocks are in use."""
        return bool(await self._call(ResetPrefixCache(next(self._call_ids))))

    async def get_stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        stats = await self._call(GetStats(next(self._call_ids)))
        assert isinstance(stats, SchedulerStats)
        return stats

    async def snapshot(self) -> EngineSnapshot:
        """What the core holds now."""
        snapshot = await self._call(GetSnapshot(next(self._call_ids)))
        assert isinstance(snapshot, EngineSnapshot)
        return snapshot

    async def pause(self, mode: PauseMode, clear_cache: bool, sleeps: bool = False) -> None:
        """Hold new sequences; returns once the others have ended or stand still."""
        await self._call(Pause(next(self._call_ids), mode, clear_cache, sleeps))

    async def resume(self) -> None:
        """Let go on what a pause holds back."""
        await self._call(Resume(next(self._call_ids)))

    async def is_paused(self) -> bool:
        """Whether new sequences are held."""
        return bool(await self._call(IsPaused(next(self._call_ids))))

    def is_dead(self) -> bool:
        """Whether the core is gone, noticed by the event loop or not yet."""
        return self.dead_error is not None or (self._is_open and self._handle.wait_ended(0))

    def check_alive(self) -> None:
        """Raise EngineDeadError where the core is dead; a stuck one dies within two intervals."""
        if self.dead_error is None and self.is_dead():
            self._on_exit()
        if self.dead_error is not None:
            raise self.dead_error

    def kill(self, cause: str) -> None:
        """End a core that is of no use any more."""
        self._handle.kill()
        if self.dead_error is None:
            self._die(cause)

    async def shutdown(self) -> None:
        """End the core; calling it again does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._detach()
        self.dead_error = self.dead_error or EngineDeadError("The engine was shut down")
        self._wake_all()
        await asyncio.to_thread(self._handle.stop, STOP_TIMEOUT)

    async def _call(self, command: Call) -> Answer:
        self.check_alive()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._calls[command.call_id] = future
        self._handle.send(command)
        return await future

    def _on_messages(self) -> None:
        while (message := self._handle.channel.receive()) is not None:
            if isinstance(message, StepOutputs):
                self._outputs.append(message)
            elif isinstance(message, Prepared):
                prepare = self._prepares.pop(message.call_id, None)
                if prepare is not None and not prepare.done():
                    prepare.set_result(message.refusal)
            elif isinstance(message, CallResult | SnapshotTaken):
                call = self._calls.pop(message.call_id, None)
                if call is not None and not call.done():
                    call.set_result(message.value)
            elif isinstance(message, CoreFailed):
                self._die(f"{message.kind}: {message.message}")
                return
        if self._outputs:
            self._wake()

    def _on_exit(self) -> None:
        self._on_messages()
        if self.dead_error is None:
            self._die(self._handle.last_words())

    def _on_watch(self) -> None:
        cause = self._watcher.verdict()
        if cause is not None:
            self.kill(cause)
        elif self._loop is not None:
            self._watch = self._loop.call_later(INTERVAL, self._on_watch)

    def _die(self, cause: str) -> None:
        self._detach()
        self.dead_error = EngineDeadError(f"The engine core died: {cause}")
        self._wake_all()

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._handle.channel.incoming_fd)
            self._loop.remove_reader(self._handle.exit_fd)
        if self._watch is not None:
            self._watch.cancel()
        self._loop = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake_all(self) -> None:
        self._wake()
        waiting: list[asyncio.Future[Any]] = [*self._calls.values(), *self._prepares.values()]
        for call in waiting:
            if not call.done() and self.dead_error is not None:
                call.set_exception(self.dead_error)
        self._calls.clear()
        self._prepares.clear()


def log_ready(config: VllmConfig, ready: CoreReady) -> None:
    """Log what the core found out while it started, and what of the model decides on replies."""
    if config.sampling_defaults:
        logger.info(
            "Default sampling parameters from the model's generation config: %s "
            "(--generation-config vllm turns them off)",
            config.sampling_defaults,
        )
    logger.info("%s; %s", ready.kernels, ready.kv_cache)
    phases = " | ".join(f"{name} {seconds:.2f}" for name, seconds in ready.timeline)
    total = sum(seconds for _, seconds in ready.timeline)
    logger.info("Engine core ready in %.2f s: %s", total, phases)
